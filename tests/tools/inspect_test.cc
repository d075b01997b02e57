// eventide inspect: graphs, events, schedules and sources, of a GPU that need not be here or of the CPU.
#include <nlohmann/json.hpp>

#include "tests/support/run_binary.h"
#include "tests/support/test.h"

namespace eventide {
namespace {

using Json = nlohmann::json;

TEST_CASE("inspect shows graphs, events, schedules and sources without a GPU") {
  if (Missing()) return;
  const std::string model = "inspect --model random:test-qwen3 --max-num-seqs 8 ";
  CHECK(Run(model + "--graph").out.find("paged_attention") != std::string::npos);
  CHECK(Run(model + "--dot").out.find("digraph") != std::string::npos);
  CHECK(Run(model + "--source --arch sm_90a").out.find("eventide_step") != std::string::npos);
  const Json events = Json::parse(Run(model + "--events --json").out);
  CHECK(events["events"].size() == 9);
  const Json schedule = Json::parse(Run(model + "--schedule --json").out);
  CHECK(schedule["workers"] == 132);
}

TEST_CASE("inspect shows what a GPU runs, wherever it is asked, and what the CPU runs when told so") {
  const std::string model = "inspect --model random:test-llama ";
  const Ran gpu = Run(model + "--graph"), cpu = Run(model + "--graph --device cpu");
  REQUIRE((gpu.code == 0 && cpu.code == 0));
  CHECK(gpu.out == Run(model + "--graph --device cuda").out);
  CHECK(gpu.out.find("symbol tokens in [0, 2048]") != std::string::npos);
  CHECK(cpu.out.find("symbol tokens in [0, 512]") != std::string::npos);
  const Json schedule = Json::parse(Run(model + "--schedule --json --device cpu --workers 4").out);
  CHECK(schedule["workers"] == 4);
  CHECK(schedule["grids"][1]["reason"] == "whichever thread runs takes the next task");
  CHECK(Run(model + "--graph --dtype float32 --device sim").code == 0);
  CHECK(Run(model + "--graph --dtype float32").code == 2);
  CHECK(Run(model + "--source --device cpu").code == 2);
}

TEST_CASE("inspect --events writes targets as --dot does: each word of a tensor by its place") {
  const std::string text = Run("inspect --model random:test-moe --events").out;
  CHECK(text.find("counts[0]") != std::string::npos);
  CHECK(text.find("counts[1]") != std::string::npos);
  CHECK(text.find("e0 * 8 + 8") != std::string::npos);
}

}  // namespace
}  // namespace eventide
