// Timing steps: what is counted, that recording a timeline changes no token, and that the record
// tells a coherent story.
#include <map>
#include <set>

#include "models/load.h"
#include "models/presets.h"
#include "models/random_weights.h"
#include "runtime/chrome_trace.h"
#include "runtime/timeline_report.h"
#include "serve/step_bench.h"
#include "tests/support/test.h"

namespace eventide {
namespace {

std::unique_ptr<StepBench> MakeBench(int timeline_tasks, std::vector<StepShape> shapes,
                                     int tokens_per_row = 1, const std::string& policy = "auto") {
  auto source = OpenModel("random:test-llama@3");
  REQUIRE(source.ok());
  StepBenchOptions options;
  options.backend.device = "cpu";
  options.backend.workers = 2;
  options.backend.policy = policy;
  options.backend.timeline_tasks = timeline_tasks;
  options.storage = DType::kF32;
  options.shapes = std::move(shapes);
  options.tokens_per_row = tokens_per_row;
  auto bench = StepBench::Create(**source, options);
  INFO(bench.status());
  REQUIRE(bench.ok());
  return std::move(*bench);
}

TEST_CASE("batches and contexts share one model, and each step brings a token per row") {
  const std::vector<StepShape> shapes = {{1, 16}, {3, 40}, {2, 90}};
  const auto bench = MakeBench(0, shapes);
  for (const StepShape& shape : shapes) {
    int last = 0;
    const auto times = bench->Measure(shape, {4, 2}, [&](int done) { last = done; });
    INFO(times.status());
    REQUIRE(times.ok());
    CHECK(last == 4 + 4 + 2);
    CHECK(times->ms.p5 > 0);
    CHECK(times->ms.p5 <= times->ms.p50);
    CHECK(times->ms.p50 <= times->ms.p95);
    CHECK(bench->last_tokens().size() == static_cast<size_t>(shape.batch));
  }
  CHECK(bench->runner().compilations() == 0);
  CHECK_FALSE(bench->LastTimeline().ok());
}

TEST_CASE("a step must read its linears and head once, and every row's KV") {
  ModelConfig config = *PresetConfig("llama-3.2-1b");
  // 16 layers of (2048 + 2 * 512 + 2048) * 2048 + 3 * 2048 * 8192, and 128256 * 2048 tied.
  const int64_t weights = 16ll * (5120ll * 2048 + 3ll * 2048 * 8192) + 128256ll * 2048;
  CHECK(StepWeightBytes(config, DType::kBF16) == 2 * weights);
  CHECK(StepKvBytes(config, DType::kBF16, 512) == 16ll * 512 * 2 * 512 * 2);
  config.tie_embeddings = false;  // the head is as large; the embedding is not read
  CHECK(StepWeightBytes(config, DType::kBF16) == 2 * weights);
  config.sliding_window = 100;
  config.windowed_layers.assign(16, false);
  config.windowed_layers[3] = true;
  CHECK(StepKvBytes(config, DType::kBF16, 512) == (15ll * 512 + 100) * 2 * 512 * 2);
}

TEST_CASE("a chunk of prefill is timed alone, behind a context and beside decode rows") {
  // Rows, context; tokens of the chunk, and before it. The first reaches the model's last position
  // but one.
  const std::vector<StepShape> shapes = {
      {0, 512, 2046, 0}, {0, 512, 1, 0}, {0, 512, 33, 50}, {3, 40, 20, 7}, {2, 16}};
  const auto bench = MakeBench(0, shapes);
  for (const StepShape& shape : shapes) {
    CAPTURE(shape.batch, shape.chunk);
    int last = 0;
    const auto times =
        bench->Measure(shape, {2, 1, /*wall=*/false}, [&](int done) { last = done; });
    INFO(times.status());
    REQUIRE(times.ok());
    CHECK(last == 2 + 1);
    CHECK(times->ms.p5 > 0);
    CHECK(times->wall_ms == 0);
    CHECK(bench->last_tokens().size() ==
          static_cast<size_t>(shape.batch) + (shape.chunk > 0 ? 1 : 0));
  }
  CHECK(bench->runner().compilations() == 0);
  const auto recorded = MakeBench(4096, {shapes[3]});
  REQUIRE(recorded->Measure(shapes[3], {1, 0}).ok());
  CHECK(recorded->LastTimeline().ok());
}

TEST_CASE("a step of experts with a chunk tells where every token went") {
  auto source = OpenModel("random:test-moe@3");
  REQUIRE(source.ok());
  StepBenchOptions options;
  options.backend.device = "cpu";
  options.storage = DType::kF32;
  const StepShape shape = {2, 16, 9, 3};
  options.shapes = {shape};
  auto bench = StepBench::Create(**source, options);
  REQUIRE(bench.ok());
  REQUIRE((*bench)->Measure(shape, {1, 0}).ok());
  const auto routes = (*bench)->LastRoutes();
  REQUIRE(routes.ok());
  CHECK(routes->lines == 2 + 9);
}

TEST_CASE("operations are two for each weight and token, and attention's are causal") {
  ModelConfig config = *PresetConfig("llama-3.2-1b");
  const double linears = 2.0 * 16 * (5120.0 * 2048 + 3.0 * 2048 * 8192);
  const double head = 2.0 * 128256 * 2048;
  const double key = 16 * 4.0 * 2048;  // of all layers: 32 heads of 64, scores and values
  const StepFlops chunk = CountFlops(config, {0, 512, 100, 0}, 1);
  CHECK(chunk.linears == linears * 100);
  CHECK(chunk.head == head);
  CHECK(chunk.attention == key * (100 * 101 / 2));
  // The same tokens in two chunks: only the head's token is counted twice.
  const StepFlops first = CountFlops(config, {0, 512, 30, 0}, 1);
  const StepFlops second = CountFlops(config, {0, 512, 70, 30}, 1);
  CHECK(first.total() + second.total() == chunk.total() + head);
  const StepFlops rows = CountFlops(config, {4, 512}, 2);
  CHECK(rows.linears == linears * 8);
  CHECK(rows.head == head * 8);
  CHECK(rows.attention == key * 4 * (513 + 514));
  config.tie_embeddings = false;  // an embedding that is only looked up multiplies nothing
  CHECK(CountFlops(config, {0, 512, 100, 0}, 1).total() == chunk.total());
  config.sliding_window = 10;
  config.windowed_layers.assign(16, true);
  CHECK(CountFlops(config, {0, 512, 100, 0}, 1).attention == key * (10 * 11 / 2 + 90 * 10));
  CHECK(CountFlops(config, {0, 512, 100, 50}, 1).attention == key * 100 * 10);
  ModelConfig experts = *PresetConfig("test-moe");
  const double all = CountFlops(experts, {0, 512, 1, 0}, 1).linears;
  experts.experts_per_token += 1;
  CHECK(CountFlops(experts, {0, 512, 1, 0}, 1).linears - all ==
        2.0 * experts.layers * 3 * experts.moe_intermediate * experts.hidden);
}

TEST_CASE("percentiles are values that were measured") {
  std::vector<double> values;
  for (int i = 100; i >= 1; --i) values.push_back(i);
  const Percentiles p = PercentilesOf(values);
  CHECK(p.p5 == 5);
  CHECK(p.p50 == 50);
  CHECK(p.p95 == 95);
  CHECK(PercentilesOf({7}).p5 == 7);
}

TEST_CASE("shapes that make no sense are refused by name") {
  const auto source = OpenModel("random:test-llama");
  REQUIRE(source.ok());
  const auto refusal = [&](StepShape shape, int tokens) {
    StepBenchOptions options;
    options.backend.device = "cpu";
    options.shapes = {shape};
    options.tokens_per_row = tokens;
    return std::string(StepBench::Create(**source, options).status().message());
  };
  CHECK(refusal({0, 16}, 1).find("batch") != std::string::npos);
  CHECK(refusal({1, 0}, 1).find("context") != std::string::npos);
  CHECK(refusal({1, 1 << 24}, 1).find("context") != std::string::npos);
  CHECK(refusal({1, 16}, 17).find("tokens per row") != std::string::npos);
  CHECK(refusal({0, 16, 2047, 0}, 1).find("a chunk of 2047") != std::string::npos);
  CHECK(refusal({1, 16, 40, 2007}, 1).find("behind 2007") != std::string::npos);
  CHECK(refusal({0, 16, -1, 0}, 1).find("batch") != std::string::npos);
  CHECK(refusal({1, 16, 1, -1}, 1).find("chunk") != std::string::npos);
  CHECK(refusal({1024, 16, 1, 0}, 1).find("batch") != std::string::npos);
}

TEST_CASE("recording a timeline changes no token") {
  for (const int tokens_per_row : {1, 4}) {
    const StepShape shape = {4, 33};
    const auto plain = MakeBench(0, {shape}, tokens_per_row);
    const auto recorded = MakeBench(4096, {shape}, tokens_per_row);
    for (int i = 0; i < 3; ++i) {
      REQUIRE(plain->Measure(shape, {1, i}).ok());
      REQUIRE(recorded->Measure(shape, {1, i}).ok());
      CHECK(plain->last_tokens() == recorded->last_tokens());
    }
  }
}

TEST_CASE("a timeline holds every task of the step once, and hops go forward in time") {
  const std::string policy = GENERATE(as<std::string>(), "static", "ticket");
  const StepShape shape = {3, 50};
  const auto bench = MakeBench(4096, {shape}, 1, policy);
  REQUIRE(bench->Measure(shape, {2, 1}).ok());
  const auto timeline = bench->LastTimeline();
  INFO(timeline.status());
  REQUIRE(timeline.ok());
  const Program& program = bench->runner().executor().program();
  std::map<std::string, int> count;
  std::set<std::vector<int>> seen;
  std::map<int, uint64_t> end_of_worker;
  for (const TimelineTask& task : timeline->tasks) {
    const TimelineRecord& r = task.record;
    CHECK(task.role == kRoleCompute);
    CHECK(r.start_ns <= r.wait_end_ns);
    CHECK(r.wait_end_ns <= r.end_ns);
    CHECK(r.start_ns >= end_of_worker[task.worker]);  // one after the other
    end_of_worker[task.worker] = r.end_ns;
    CHECK(r.start_ns >= timeline->begin_ns);
    CHECK(r.end_ns <= timeline->end_ns);
    CHECK(seen.insert({r.grid, r.layer, r.at[0], r.at[1], r.at[2]}).second);
    ++count[program.grids[r.grid].name];
  }
  const int layers = bench->runner().decoder().config.layers;
  CHECK(count["plan"] == 1);
  CHECK(count["sample"] == 2 * shape.batch);  // a token each, and a row each
  CHECK(count["qkv"] > 0);
  CHECK(count["qkv"] % layers == 0);
  CHECK(timeline->roles.size() == 2);
  for (const TimelineRole& role : timeline->roles) CHECK(role.dropped == 0);
  CHECK(timeline->hops.size() > static_cast<size_t>(5 * layers));
  for (const TimelineHop& hop : timeline->hops) {
    // The notify is inside the notifier's end; the clock is read after it.
    CHECK(timeline->tasks[hop.from].record.start_ns < timeline->tasks[hop.to].record.wait_end_ns);
  }

  const auto report = ReportTimeline(nlohmann::ordered_json::parse(
      ChromeTrace(*timeline, program, {{"model", "test \"llama\""}, {"floor_ms", 0.25}})));
  INFO(report.status());
  REQUIRE(report.ok());
  double sum = report->head_ms + report->tail_ms;
  int64_t tasks = 0;
  for (const GridTime& grid : report->grids) {
    sum += grid.advance_ms;
    tasks += grid.tasks;
  }
  CHECK(sum == Approx(report->step_ms).epsilon(1e-6));
  int64_t gates = 0;  // stand in for producers that do not exist: no time is theirs
  std::set<int> busy;
  for (const TimelineTask& task : timeline->tasks) {
    const bool gate = program.grids[task.record.grid].is_gate;
    gates += gate ? 1 : 0;
    if (!gate) busy.insert(static_cast<int>(task.worker));
  }
  CHECK(gates > 0);
  CHECK(tasks + gates == static_cast<int64_t>(timeline->tasks.size()));
  // With tickets, one worker may be quick enough to take all tasks but gates.
  CHECK(report->workers == static_cast<int>(busy.size()));
  if (policy == "static") CHECK(report->workers == 2);
  CHECK(report->floor_ms == 0.25);
  CHECK(ToText(*report).find("gate_up") != std::string::npos);
}

TEST_CASE("a recording that is too short says how many tasks are missing") {
  const StepShape shape = {2, 20};
  const auto bench = MakeBench(4, {shape});
  REQUIRE(bench->Measure(shape, {1, 0}).ok());
  const auto timeline = bench->LastTimeline();
  REQUIRE(timeline.ok());
  uint64_t dropped = 0;
  for (const TimelineRole& role : timeline->roles) dropped += role.dropped;
  CHECK(dropped > 0);
  CHECK(timeline->tasks.size() <= 8);
}

TEST_CASE("what is no timeline is refused with a reason") {
  CHECK(ReportTimeline({{"a", 1}}).status().message() != "");
  CHECK_FALSE(ReportTimeline({{"traceEvents", nlohmann::ordered_json::array()}}).ok());
  const nlohmann::ordered_json strange = {
      {"traceEvents", {{{"ph", "X"}, {"cat", "task"}, {"pid", 0}}}}};
  CHECK_FALSE(ReportTimeline(strange).ok());
  CHECK_FALSE(ReportTimelineFile("/nonexistent/file").ok());
}

TEST_CASE("a context is moved within an admitted slot only, and within its length") {
  const StepShape shape = {2, 20};
  const auto bench = MakeBench(0, {shape});
  MegakernelRunner& runner = bench->runner();
  const std::vector<TokenId> one = {1};
  CHECK_FALSE(runner.SetContext(0, 3, one).ok());
  const std::vector<TokenId> prompt = {1, 2, 3};
  SlotAdmission admission;
  admission.tokens = prompt;
  admission.max_length = 20;
  REQUIRE(runner.Admit(admission).ok());
  const auto limit = static_cast<uint32_t>(runner.info().max_model_len);
  CHECK(runner.SetContext(0, 3, one).ok());
  CHECK(runner.SetContext(0, limit - 2, one).ok());
  CHECK_FALSE(runner.SetContext(0, limit - 1, one).ok());
  CHECK_FALSE(runner.SetContext(0, UINT32_MAX, one).ok());
  CHECK_FALSE(runner.SetContext(0, 3, std::vector<TokenId>{}).ok());
  CHECK_FALSE(runner.SetContext(0, 3, std::vector<TokenId>{-1}).ok());
}

}  // namespace
}  // namespace eventide
