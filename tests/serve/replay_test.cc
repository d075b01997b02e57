#include "serve/replay.h"

#include "absl/strings/str_cat.h"
#include "tests/serve/fake_runner.h"
#include "tests/support/test.h"

namespace eventide {
namespace {

// A replay on the fake device in virtual time.
struct Rig {
  explicit Rig(FakeRunnerOptions fake = {}) {
    fake.info.max_slots = 16;
    fake.info.max_batched_tokens = 128;
    fake.info.max_model_len = 2048;
    if (fake.info.num_blocks == 0) fake.info.num_blocks = 512;
    fake.info.max_steps_in_flight = 2;
    fake.info.vocab_size = 257;
    fake.clock = &clock;
    runner = std::make_unique<FakeRunner>(fake);
    auto created = Engine::Create(runner.get(), &clock, {});
    REQUIRE(created.ok());
    engine = *std::move(created);
  }
  absl::StatusOr<ReplayResult> Run(const Trace& trace, const ReplayOptions& options) {
    auto prompts = PromptSynthesizer::Create(257, std::vector<TokenId>{0, 1, 2});
    REQUIRE(prompts.ok());
    return Replay(engine.get(), &clock, trace, *prompts, options);
  }
  ManualClock clock;
  std::unique_ptr<FakeRunner> runner;
  std::unique_ptr<Engine> engine;
};

Trace Sample() {
  auto trace = ReadTrace(SourceFile("data/traces/sample_200.csv"));
  REQUIRE(trace.ok());
  return *trace;
}

TEST_CASE("An open-loop replay keeps the trace's times and completes every request") {
  Rig rig;
  const Trace trace = Sample();
  uint64_t reports = 0, last_ended = 0;
  ReplayOptions options;
  options.progress = [&](const ReplayProgress& p) {
    ++reports;
    REQUIRE(p.total == 200);
    REQUIRE(p.ended >= last_ended);
    last_ended = p.ended;
  };
  auto result = rig.Run(trace, options);
  REQUIRE(result.ok());
  CHECK(result->requests == 200);
  CHECK(result->completed == 200);
  CHECK(result->failed == 0);
  uint64_t prompt = 0, output = 0;
  for (const TraceRequest& r : trace.requests) {
    prompt += r.prompt_tokens;
    output += r.output_tokens;
  }
  CHECK(result->prompt_tokens == prompt);
  CHECK(result->output_tokens == output);  // end-of-sequence is ignored
  const double span = 1e-9 * static_cast<double>(trace.requests.back().arrival_ns);
  CHECK(result->seconds > span);
  CHECK(result->seconds < span + 1);
  CHECK(result->ttft_ms.p50 >= 1);
  CHECK(result->ttft_ms.p99 >= result->ttft_ms.p50);
  CHECK(result->tpot_ms.p50 >= 1);
  CHECK(result->output_tokens_per_second == Approx(static_cast<double>(output) / result->seconds));
  CHECK(reports > result->steps);
  CHECK(last_ended == 200);
  CHECK(rig.engine->stats().kv_blocks_used == 0);
}

TEST_CASE("Requests run again alone are compared, and change neither times nor counts") {
  const Trace trace = Sample();
  ReplayOptions options;
  options.closed_loop = 16;
  Rig plain, again;
  const auto before = plain.Run(trace, options);
  options.verify = 50;
  uint64_t total = 0, ended = 0;
  options.progress = [&](const ReplayProgress& p) {
    total = p.total;
    ended = p.ended;
  };
  const auto result = again.Run(trace, options);
  REQUIRE(before.ok());
  REQUIRE(result.ok());
  CHECK(before->verified == 0);
  CHECK(result->verified == 50);
  CHECK(result->differing == 0);
  CHECK(result->kv_blocks_held == 0);
  CHECK(total == 250);
  CHECK(ended == 250);
  auto json = ToJson(*result);
  CHECK(json.at("verified").dump() == R"({"requests":50,"differing":0})");
  json.erase("verified");
  CHECK(json == ToJson(*before));
  options.verify = 1000;  // more than there are
  Rig all;
  const auto everything = all.Run(trace, options);
  REQUIRE(everything.ok());
  CHECK(everything->verified == 200);
}

TEST_CASE("A request whose tokens depend on its company is found") {
  FakeRunnerOptions fake;
  fake.tokens_depend_on_rows = true;
  Rig rig(fake);
  ReplayOptions options;
  options.closed_loop = 16;
  options.verify = 20;
  const auto result = rig.Run(Sample(), options);
  REQUIRE(result.ok());
  CHECK(result->verified == 20);
  CHECK(result->differing > 0);
  CHECK(result->first_difference.substr(0, 6) == "trace-");
}

TEST_CASE("The time scale stretches arrivals, and zero sends everything at once") {
  const Trace trace = Sample();
  ReplayOptions options;
  options.time_scale = 0.1;
  Rig fast, burst;
  auto scaled = fast.Run(trace, options);
  REQUIRE(scaled.ok());
  CHECK(scaled->seconds < 7);
  options.time_scale = 0;
  auto at_once = burst.Run(trace, options);
  REQUIRE(at_once.ok());
  CHECK(at_once->completed == 200);
  CHECK(at_once->max_batch == 16);
  CHECK(at_once->seconds < scaled->seconds);
  for (double bad : {-1.0, 1e9, 0.0 / 0.0}) {
    options.time_scale = bad;
    CHECK_FALSE(burst.Run(trace, options).ok());
  }
}

TEST_CASE("A closed loop keeps so many requests going and never more") {
  Rig rig;
  ReplayOptions options;
  options.closed_loop = 3;
  uint64_t most = 0;
  options.progress = [&](const ReplayProgress& p) { most = std::max(most, p.running + p.queued); };
  auto result = rig.Run(Sample(), options);
  REQUIRE(result.ok());
  CHECK(result->completed == 200);
  CHECK(most == 3);
  CHECK(result->max_batch == 3);
}

TEST_CASE("Failures and refusals are counted and the first one is kept") {
  Trace trace = Sample();
  trace.requests[7].prompt_tokens = 5000;  // not fitted: refused
  FakeRunnerOptions fake;
  fake.step_failure = 0.01;
  Rig rig(fake);
  auto result = rig.Run(trace, {});
  REQUIRE(result.ok());
  CHECK(result->completed + result->failed == 200);
  CHECK(result->failed > 1);
  CHECK_FALSE(result->first_error.empty());
}

TEST_CASE("A replay that is stopped cancels what runs, admits nothing more and counts both") {
  for (const uint64_t closed_loop : {uint64_t{0}, uint64_t{5}}) {
    Rig rig;
    ReplayOptions options;
    options.closed_loop = closed_loop;
    uint64_t ended = 0, aborted = 0, calls = 0;
    options.on_output = [&](const RequestOutput& output) {
      ended += output.finish_reason == FinishReason::kLength;
      aborted += output.finish_reason == FinishReason::kAbort;
    };
    options.stop = [&] {
      ++calls;
      return ended >= 20 && rig.engine->stats().running > 0;
    };
    auto result = rig.Run(Sample(), options);
    REQUIRE(result.ok());
    CHECK(result->completed == ended);
    CHECK(aborted > 0);
    CHECK(result->cancelled == 200 - ended);
    CHECK(result->failed == 0);
    CHECK(calls > 20);
    CHECK_FALSE(rig.engine->HasWork());
    CHECK(rig.engine->stats().kv_blocks_used == 0);
  }
}

TEST_CASE("Nobody who stops a replay waits for the next arrival") {
  Rig rig;
  Trace trace = Sample();
  trace.requests.resize(2);
  trace.requests[1].arrival_ns = int64_t{3600} * 1'000'000'000;
  ReplayOptions options;
  options.stop = [&] { return rig.clock.NowNs() > int64_t{5} * 1'000'000'000; };
  auto result = rig.Run(trace, options);
  REQUIRE(result.ok());
  CHECK(result->completed == 1);
  CHECK(result->cancelled == 1);
  CHECK(result->seconds < 6);
}

TEST_CASE("Records of a replay tell of every request, refused ones too") {
  Trace trace = Sample();
  trace.requests.resize(10);
  trace.requests[7].prompt_tokens = 5000;  // not fitted: refused
  trace.requests[3].output_tokens = 1;
  Rig rig;
  std::vector<nlohmann::json> lines;
  ReplayRecords records(
      [&](const std::string& line) { lines.push_back(nlohmann::json::parse(line)); });
  ReplayOptions options;
  options.on_output = [&](const RequestOutput& output) { records.Take(output); };
  auto result = rig.Run(trace, options);
  REQUIRE(result.ok());
  REQUIRE(lines.size() == 10);
  for (const auto& line : lines) {
    const size_t index = std::stoul(line["id"].get<std::string>().substr(6));
    CAPTURE(line.dump());
    if (index == 7) {
      CHECK(line["finish_reason"] == "error");
      CHECK(line["error"].get<std::string>().find("5000") != std::string::npos);
      CHECK(line["tokens"].empty());
      CHECK(line["ttft_ms"].is_null());
      continue;
    }
    CHECK(line["finish_reason"] == "length");
    CHECK(line["tokens"].size() == trace.requests[index].output_tokens);
    CHECK(line["ttft_ms"].get<double>() >= 1);  // of virtual time: a step at least
    CHECK(line["tpot_ms"].is_null() == (index == 3));
    if (index != 3) CHECK(line["tpot_ms"].get<double>() >= 1);
    CHECK_FALSE(line.contains("error"));
  }
}

TEST_CASE("The JSON of a replay has the keys that scripts rely on, in order") {
  nlohmann::ordered_json json = ToJson(ReplayResult{});
  std::string keys;
  for (const auto& [key, value] : json.items()) keys += key + " ";
  CHECK(keys ==
        "requests completed failed cancelled prompt_tokens output_tokens seconds "
        "output_tokens_per_second "
        "ttft_ms "
        "tpot_ms steps distinct_shapes compilations compilations_after_ready max_batch preemptions "
        "prefix_hit_tokens kv_blocks_held ");
  CHECK(json["ttft_ms"].contains("p99"));
}

TEST_CASE("Two thousand Azure requests, scaled to a small model, all complete in many shapes") {
  auto path = TestData("traces/azure2023_conv.csv");
  if (!path) return Skip("no traces in EVENTIDE_TEST_DATA");
  auto trace = ReadTrace(*path, 2000);
  REQUIRE(trace.ok());
  REQUIRE(FitTrace(&*trace, 2048).ok());
  FakeRunnerOptions fake;
  fake.info.num_blocks = 200;  // little more than one maximal request: preemptions
  Rig rig(fake);
  ReplayOptions options;
  options.time_scale = 0.05;
  auto result = rig.Run(*trace, options);
  REQUIRE(result.ok());
  CHECK(result->completed == 2000);
  CHECK(result->distinct_shapes >= 500);
  CHECK(result->compilations_after_ready == 0);
  CHECK(rig.engine->stats().kv_blocks_used == 0);
  CHECK(rig.engine->CheckIntegrity().ok());
}

TEST_CASE("A replay repeats exactly") {
  auto run = [] {
    Rig rig;
    std::string all;
    ReplayOptions options;
    options.time_scale = 0.01;
    options.on_output = [&](const RequestOutput& output) {
      absl::StrAppend(&all, output.id, ":");
      for (TokenId token : output.tokens) absl::StrAppend(&all, token, ",");
    };
    auto result = rig.Run(Sample(), options);
    REQUIRE(result.ok());
    return all + ToJson(*result).dump();
  };
  CHECK(run() == run());
}

TEST_CASE("The idle share is told by whose clock it is, and not without one") {
  FakeRunnerOptions fake;
  Rig none(fake);
  ReplayOptions options;
  options.closed_loop = 4;
  auto untimed = none.Run(Sample(), options);
  REQUIRE(untimed.ok());
  CHECK(ToJson(*untimed).dump().find("idle") == std::string::npos);
  fake.info.clock = "gpu";
  fake.step_ms = 9;
  fake.gap_ms = 1;
  Rig timed(fake);
  auto result = timed.Run(Sample(), options);
  REQUIRE(result.ok());
  const auto json = ToJson(*result);
  CHECK(json["step_seconds"].get<double>() == Approx(0.009 * static_cast<double>(result->steps)));
  // Of all gaps but the first step's.
  CHECK(json["gpu_idle_seconds"].get<double>() ==
        Approx(0.001 * static_cast<double>(result->steps - 1)));
  CHECK(json["gpu_idle_share"].get<double>() == Approx(0.1).epsilon(0.01));
  CHECK_FALSE(json.contains("cpu_idle_share"));
}

TEST_CASE("Percentiles are nearest ranks") {
  std::vector<double> samples;
  for (int i = 100; i >= 1; --i) samples.push_back(i);
  CHECK(Percentile(samples, 50) == 50);
  CHECK(Percentile(samples, 90) == 90);
  CHECK(Percentile(samples, 99) == 99);
  CHECK(Percentile(samples, 100) == 100);
  CHECK(Percentile(samples, 0) == 1);
  CHECK(Percentile({7}, 50) == 7);
  CHECK(Percentile({}, 50) == 0);
}

TEST_CASE("Shapes are equal when only the order of rows differs") {
  ShapeCounter counter;
  using Row = ShapeCounter::RowShape;
  counter.Add(std::vector<Row>{{1, 10}, {5, 5}});
  counter.Add(std::vector<Row>{{5, 5}, {1, 10}});
  CHECK(counter.count() == 1);
  counter.Add(std::vector<Row>{{1, 11}, {5, 5}});
  counter.Add(std::vector<Row>{{1, 10}, {4, 5}});
  counter.Add(std::vector<Row>{{1, 10}});
  CHECK(counter.count() == 4);
}

}  // namespace
}  // namespace eventide
