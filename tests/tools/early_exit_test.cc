// --exit-threshold as a user gives it: what it changes, and what the commands report.
#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/support/run_binary.h"
#include "tests/support/test.h"

namespace eventide {
namespace {

using Json = nlohmann::json;

// The parts of a report agree with each other.
void CheckExits(const Json& exits) {
  const double tokens = exits["tokens"];
  double left = 0, layers = 0;
  for (const auto& [layer, count] : exits["left_behind_layer"].items()) {
    left += count.get<double>();
    layers += count.get<double>() * std::stod(layer);
  }
  CHECK(left == exits["left_early"]);
  CHECK(std::fabs(layers + (tokens - left) * exits["layers"].get<double>() -
                  tokens * exits["layers_per_token"].get<double>()) < 1e-6);
}

TEST_CASE("early exit: a threshold that nobody reaches changes nothing, and one that all reach saves layers") {
  if (Missing()) return;
  const std::string model = "--model random:test-early-exit@5 --device cpu --workers 2 ";
  const std::string generate = "generate " + model + "--max-model-len 128 --tokens 5,6,7 --max-tokens 9 --json ";
  const auto tokens = [](const Ran& ran) {
    REQUIRE(ran.code == 0);
    return Json::parse(ran.out)["tokens"].get<std::vector<int>>();
  };
  const std::vector<int> plain = tokens(Run(generate));
  CHECK(tokens(Run(generate + "--exit-threshold 1")) == plain);
  const std::vector<int> early = tokens(Run(generate + "--exit-threshold 0.1 --exit-after 2"));
  CHECK(early.size() == plain.size());
  CHECK(tokens(Run(generate + "--exit-threshold 0.1 --exit-after 2 --speculate ngram:3")) == early);
  // Everybody leaves, most behind three layers: 3 tokens of the prompt, 8 of the answer's 9.
  const Json all = Json::parse(Run(generate + "--exit-threshold 0.1 --exit-after 3").out)["early_exit"];
  CHECK(all["tokens"] == 11);
  CHECK(all["layers"] == 8);
  CHECK(all["left_early"] == 11);
  CheckExits(all);
  CHECK(all["layers_per_token"] < 4);
  const Json nobody = Json::parse(Run(generate + "--exit-threshold 1").out)["early_exit"];
  CHECK(nobody["layers_per_token"] == 8);
  CHECK(nobody["left_behind_layer"].empty());
  CHECK_FALSE(Json::parse(Run(generate).out).contains("early_exit"));
  const Ran replay = Run("replay " + model + "--exit-threshold 0.1 --exit-after 3 --requests 3 --verify 2 --json --trace '" +
                         SourceFile("data/traces/sample_200.csv") + "'");
  REQUIRE(replay.code == 0);
  const Json served = Json::parse(replay.out);
  CheckExits(served["early_exit"]);
  CHECK(served["early_exit"]["tokens"] ==
        served["prompt_tokens"].get<int>() + served["output_tokens"].get<int>() - 3 - served["prefix_hit_tokens"].get<int>());
  const std::string bench = "bench decode " + model + "--batch 3 --context 64 --steps 2 --json ";
  const auto layers = [](const Ran& ran) {
    REQUIRE(ran.code == 0);
    return Json::parse(ran.out)["rows"][0]["early_exit"]["layers_per_token"].get<double>();
  };
  CHECK(layers(Run(bench + "--exit-threshold 1")) == 8);
  CHECK(layers(Run(bench + "--exit-threshold 0.1 --exit-after 3")) == 3);
  CHECK(Run("generate --model random:test-olmoe --tokens 1 --exit-threshold 0.5").code != 0);
}

TEST_CASE("early exit of a mixture of experts is a matter of the same flags") {
  if (Missing()) return;
  const std::string model = "--model random:test-moe@5 --device cpu --workers 2 ";
  const std::string generate = "generate " + model + "--max-model-len 128 --tokens 5,6,7 --max-tokens 9 --json ";
  const Ran plain = Run(generate), exits = Run(generate + "--exit-threshold 1");
  REQUIRE(plain.code == 0);
  REQUIRE(exits.code == 0);
  CHECK(Json::parse(exits.out)["tokens"] == Json::parse(plain.out)["tokens"]);
  const auto bench = [&](const std::string& flags) {
    const Ran ran = Run("bench decode " + model + "--batch 3 --context 64 --steps 2 --json " + flags);
    REQUIRE(ran.code == 0);
    return Json::parse(ran.out)["rows"][0];
  };
  const Json stay = bench("--exit-threshold 1"), leave = bench("--exit-threshold 0.1 --exit-after 2");
  CHECK(stay["early_exit"]["layers_per_token"] == 4);
  CHECK(leave["early_exit"]["layers_per_token"] == 2);
  // Bytes are of experts that have tokens.
  CHECK(stay["bytes"] == bench("")["bytes"]);
  CHECK(leave["bytes"] < stay["bytes"]);
}

}  // namespace
}  // namespace eventide
