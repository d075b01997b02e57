// eventide bench as a user calls it, on the CPU.
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

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

TEST_CASE("bench prefill gives one row for each chunk, with operations counted and both floors") {
  if (Missing()) return;
  const std::string prefill =
      "bench prefill --model random:test-llama@2 --device cpu --workers 2 --steps 3 --warmup 1 "
      "--chunk 5,40 --context 16 --json ";
  const Ran plain = Run(prefill);
  REQUIRE(plain.code == 0);
  const Json json = Json::parse(plain.out);
  REQUIRE(json["rows"].size() == 2);
  CHECK(json["compilations"] == 0);
  for (const Json& row : json["rows"]) {
    for (const char* key : {"model", "batch", "context", "policy", "ms", "bytes", "ceiling_gbps",
                            "floor_ms", "share", "gpu", "memory_floor_ms"}) {
      CAPTURE(key);
      CHECK(row.contains(key));
    }
    const Json& flops = row["flops"];
    const double total = flops["linears"].get<double>() + flops["attention"].get<double>() +
                         flops["head"].get<double>();
    CHECK(row["tflops"].get<double>() == Approx(total / row["ms"]["p50"].get<double>() / 1e9));
    // Nobody knows a CPU's peak.
    CHECK_FALSE(row.contains("peak_tflops"));
    CHECK(row["floor_ms"] == row["memory_floor_ms"]);
  }
  CHECK(json["rows"][1]["chunk"] == 40);
  CHECK(json["rows"][1]["context"] == 16);
  // So low a peak that computing is the larger floor.
  const Ran given = Run(prefill + "--peak-tflops 0.000001");
  REQUIRE(given.code == 0);
  for (const Json& row : Json::parse(given.out)["rows"]) {
    CHECK(row["peak_from"] == "flag");
    CHECK(row["floor_ms"] == row["compute_floor_ms"]);
    CHECK(row["floor_ms"] > row["memory_floor_ms"]);
  }
  CHECK(Run(prefill + "--kv-gib 0.000001").code == 1);
  CHECK(Run("bench prefill --model random:test-llama --device cpu --chunk 2047").code == 2);
}

TEST_CASE("bench shapes measures every size with one program and says where the curve has steps") {
  if (Missing()) return;
  const std::string shapes =
      "bench shapes --model random:test-llama@2 --device cpu --workers 2 --steps 1 --warmup 0 "
      "--context 16 --json ";
  const Ran ran = Run(shapes + "--batch 1..12 --chunk 1..3,8,9 --mixed 1,3 --mixed-chunk 20");
  REQUIRE(ran.code == 0);
  const Json json = Json::parse(ran.out);
  CHECK(json["compilations_after_ready"] == 0);
  REQUIRE(json["batch"]["points"].size() == 12);
  REQUIRE(json["chunk"]["points"].size() == 5);
  CHECK(json["batch"]["points"][11]["batch"] == 12);
  CHECK(json["chunk"]["points"][3]["chunk"] == 8);
  for (const char* axis : {"batch", "chunk"}) {
    const Json& sweep = json[axis];
    CHECK(sweep["left_out"].empty());
    CHECK(sweep["points"].front()["deviation"].is_null());
    std::set<int> beyond;
    for (const Json& point : sweep["points"]) {
      CHECK(point["ms"]["p50"] > 0);
      if (point["deviation"].is_null()) continue;
      if (std::abs(point["deviation"].get<double>()) > sweep["limit"].get<double>()) {
        beyond.insert(point[axis].get<int>());
      }
    }
    CHECK(sweep["beyond"] == beyond);
    for (const Json& cliff : sweep["cliffs"]) CHECK(beyond.count(cliff.get<int>()) == 1);
    for (const Json& step : sweep["tile_steps"]) CHECK(step["after"].get<int>() % 8 == 0);
  }
  REQUIRE(json["mixed"].size() == 2);
  for (const Json& point : json["mixed"]) {
    CHECK(point["chunk"] == 20);
    CHECK(point["over_chunk"].get<double>() ==
          Approx(point["both_ms"].get<double>() / point["chunk_ms"].get<double>()));
  }
  // What is not asked for is not measured; what there is no time for is listed.
  const Ran late = Run(shapes + "--batch 1..1000 --seconds 0.1");
  REQUIRE(late.code == 0);
  const Json some = Json::parse(late.out);
  CHECK(some["chunk"]["points"].empty());
  CHECK(some["mixed"].empty());
  CHECK(some["batch"]["points"].size() + some["batch"]["left_out"].size() == 1000);
  CHECK_FALSE(some["batch"]["left_out"].empty());
  const Ran small = Run(shapes + "--mixed 1,1000 --mixed-chunk 1 --kv-gib 0.001");
  REQUIRE(small.code == 0);
  CHECK(Json::parse(small.out)["mixed"].size() == 1);
  CHECK(Json::parse(small.out)["mixed_left_out"] == Json{1000});
  CHECK(Json::parse(Run(shapes + "--mixed 1,3 --mixed-chunk 20 --seconds 0.000001").out)["mixed_left_out"] ==
        Json{3});
  // The context is that of decode rows: without any it may be what it wants.
  const std::string far = "bench shapes --model random:test-llama --device cpu --steps 1 --context 9999 --json ";
  CHECK(Run(far + "--chunk 1").code == 0);
  CHECK(Run(far + "--batch 1").code == 2);
  CHECK(Run(far + "--mixed 1 --mixed-chunk 1").code == 2);
  CHECK(Run(shapes + "--chunk 2047").code == 2);
  CHECK(Run(shapes + "--batch 1 --kv-gib 0.000001").code == 1);
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
  CHECK(Run(moe + "--routing zipf:-1").code == 2);
  CHECK(Run("bench moe --model random:test-llama --device cpu").code == 2);
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
