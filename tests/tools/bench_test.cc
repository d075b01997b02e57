// eventide bench as a user calls it, on the CPU.
#include <nlohmann/json.hpp>

#include "tests/support/run_binary.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test.h"

namespace eventide {
namespace {

using Json = nlohmann::json;

const std::string kDecode =
    "bench decode --model random:test-llama@2 --device cpu --workers 2 --steps 3 --warmup 1 ";

TEST_CASE("bench decode gives one row for each batch and context, with the agreed names") {
  if (Missing()) return;
  const Ran ran = Run(kDecode + "--batch 1,3 --context 16,40 --json");
  REQUIRE(ran.code == 0);
  const Json json = Json::parse(ran.out);
  REQUIRE(json["rows"].size() == 4);
  CHECK(json["compilations"] == 0);
  for (const Json& row : json["rows"]) {
    for (const char* key : {"model", "batch", "context", "policy", "ms", "bytes", "ceiling_gbps",
                            "floor_ms", "share", "gpu"}) {
      CAPTURE(key);
      CHECK(row.contains(key));
    }
    const double p50 = row["ms"]["p50"];
    CHECK(row["share"].get<double>() == Approx(row["floor_ms"].get<double>() / p50));
    CHECK(row["floor_ms"].get<double>() ==
          Approx(row["bytes"].get<double>() / row["ceiling_gbps"].get<double>() / 1e6));
  }
  CHECK(json["rows"][1]["batch"] == 3);
  CHECK(json["rows"][2]["context"] == 40);
}

TEST_CASE("bench moe measures every routing and says where the tokens went") {
  if (Missing()) return;
  const TempFolder folder;
  const std::string moe =
      "bench moe --model random:test-moe@2 --device cpu --workers 2 --steps 3 --warmup 1 "
      "--context 16 --json ";
  const std::string record = folder.path() + "/routes.jsonl";
  const Ran ran =
      Run(moe + "--batch 5 --routing uniform,zipf:1,one-hot,router --record '" + record + "'");
  REQUIRE(ran.code == 0);
  const Json rows = Json::parse(ran.out)["rows"];
  REQUIRE(rows.size() == 4);
  for (const Json& row : rows) {
    CAPTURE(row.dump());
    double experts = 0;
    for (const Json& bucket : row["tokens_per_expert"]) experts += bucket["experts"].get<double>();
    CHECK(experts == Approx(16));
    CHECK(row["bytes"] > 0);
  }
  // Five tokens of four experts each.
  CHECK(rows[2]["active_experts"]["mean"] == 4);
  CHECK(rows[2]["busiest_expert"]["max"] == 5);
  CHECK(rows[0]["active_experts"]["mean"] > 8);
  CHECK(rows[0]["bytes"] > rows[2]["bytes"]);
  const Ran again = Run(moe + "--batch 5 --policies static,ticket --routing 'recorded:" + record + "'");
  REQUIRE(again.code == 0);
  const Json recorded = Json::parse(again.out)["rows"];
  REQUIRE(recorded.size() == 2);
  CHECK(recorded[0]["policy"] == "static");
  CHECK(recorded[1]["tokens_per_expert"] == recorded[0]["tokens_per_expert"]);
  CHECK(Run(moe + "--routing zipf:-1").code == 1);
  CHECK(Run("bench moe --model random:test-llama --device cpu").code == 1);
}

TEST_CASE("a recorded step can be inspected without naming the model again") {
  if (Missing()) return;
  const TempFolder folder;
  const std::string file = folder.path() + "/step.json";
  REQUIRE(Run(kDecode + "--batch 2 --context 20 --timeline '" + file + "'").code == 0);
  const Ran ran = Run("inspect --timeline '" + file + "' --json");
  REQUIRE(ran.code == 0);
  const Json json = Json::parse(ran.out);
  CHECK(json["workers"] == 2);
  CHECK(json["about"]["batch"] == 2);
  CHECK(json["grids"].size() > 8);
}

TEST_CASE("bench refuses what it cannot measure") {
  if (Missing()) return;
  // A context beyond the model's positions is bad usage, like the rows of usage_test.cc.
  const Ran ran = Run("bench decode --model random:test-llama --device cpu --context 9999");
  CHECK(ran.code == 2);
  CHECK(ran.out.empty());
  CHECK(Run("inspect --timeline /nonexistent.json").code == 1);
  CHECK(Run(kDecode + "--kv-gib 0.000001").code == 1);
}

}  // namespace
}  // namespace eventide
