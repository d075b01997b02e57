#include <chrono>
#include <thread>
#include <vector>

#include "core/graph.h"
#include "runtime/cpu_executor.h"
#include "tests/support/planted.h"
#include "tests/support/runtime_ops.h"
#include "tests/support/sim_campaign.h"
#include "tests/support/test.h"

namespace eventide {
namespace {

const CpuOpTable& Ops() {
  static const CpuOpTable table = RuntimeTestOps<CpuWorker<kCpuPortable>, CpuWorkerBase>();
  return table;
}

// Two grids over a symbol: the second reads all that the first wrote.
Graph Pair(const std::vector<Expr>& weight_shape = {4096}) {
  Graph g("pair");
  const Expr rows = g.AddSymbol("rows", 0, 40);
  const TensorId weights = g.AddTensor("weights", DType::kU8, weight_shape, TensorRole::kWeight);
  const TensorId x = g.AddTensor("x", DType::kU8, {64, kRecordBytes}, TensorRole::kInput);
  const TensorId y = g.AddTensor("y", DType::kU8, {rows, kRecordBytes}, TensorRole::kScratch);
  const TensorId z = g.AddTensor("z", DType::kU8, {rows, kRecordBytes}, TensorRole::kOutput);
  const EventId done = g.AddEvents("y_done", {1});
  g.Call<PageSum1>("first", {weights, x, x, y}, {1, 3, 4, {{-1, 5}, {-1, 2}}, 1}, {rows})
      .Notify(done, {0});
  g.Call<PageSum2>("second", {weights, y, x, z}, {2, 5, 3, {g.Dim(rows), {-1, 1}}, 1}, {rows})
      .Wait(done, {0});
  return g;
}

std::vector<uint32_t> RunPair(int workers, const std::string& policy, int rows) {
  absl::StatusOr<Program> program = Lower(Pair());
  INFO(program.status());
  REQUIRE(program.ok());
  CpuExecutorOptions options;
  options.workers = workers;
  options.policy = policy;
  options.ops = &Ops();
  auto made = MakeCpuExecutor(*std::move(program), options);
  INFO(made.status());
  REQUIRE(made.ok());
  Executor& executor = **made;
  for (int tensor = 0; tensor < 2; ++tensor)
    REQUIRE(executor.Fill(executor.TensorBuffer(tensor), 0, 37 + tensor, 4096).ok());
  std::vector<uint32_t> result(rows * kRecordWords);
  for (int step = 0; step < 3; ++step) {
    StepHeader header = {};
    header.symbols[0] = rows;
    const absl::Status status = executor.RunStep(header);
    INFO(status);
    REQUIRE(status.ok());
    REQUIRE(executor.Read(executor.TensorBuffer(3), 0, result.data(), result.size() * 4).ok());
  }
  return result;
}

TEST_CASE("weights that no memory of this machine holds are refused before any of them is loaded") {
  absl::StatusOr<Program> program = Lower(Pair({1 << 24, 1 << 22}));  // 64 TiB, which Linux would promise
  INFO(program.status());
  REQUIRE(program.ok());
  CpuExecutorOptions options;
  options.workers = 1;
  options.ops = &Ops();
  const auto made = MakeCpuExecutor(*std::move(program), options);
  REQUIRE(absl::IsResourceExhausted(made.status()));
  CHECK(made.status().message().find("its weights alone do not fit: use a smaller model") != std::string::npos);
}

TEST_CASE("the CPU executor gives the same words for any number of workers and policy") {
  for (const int rows : {0, 1, 7, 40}) {
    const std::vector<uint32_t> expected = RunPair(1, "static", rows);
    for (const int workers : {1, 2, 3, 7}) {
      for (const char* policy : {"static", "ticket", "auto"})
        CHECK(RunPair(workers, policy, rows) == expected);
    }
  }
}

TEST_CASE("random graphs on 1, 2, 3 and 7 threads under every policy give one worker's words") {
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    const absl::StatusOr<Program> program = Lower(RandomRuntimeGraph(seed));
    REQUIRE(program.ok());
    StepHeader header = {};
    header.symbols[0] = static_cast<int>(seed % 7);
    header.symbols[1] = static_cast<int>(seed % 5);
    std::vector<std::vector<uint8_t>> expected;
    for (const int workers : {1, 2, 3, 7}) {
      for (const char* policy : {"static", "ticket"}) {
        CpuExecutorOptions options;
        options.workers = workers;
        options.policy = policy;
        options.ops = &Ops();
        auto executor = MakeCpuExecutor(*program, options);
        REQUIRE(executor.ok());
        for (int step = 0; step < 5; ++step) {
          FillTensors(**executor, seed);
          const absl::Status status = (*executor)->RunStep(header);
          INFO(status);
          REQUIRE(status.ok());
          const auto content = TensorContents(**executor);
          if (expected.empty()) expected = content;
          CHECK((content == expected));
        }
      }
    }
  }
}

TEST_CASE(
    "a missing notify ends in an error that names event, task and counts; the next step works") {
  const PlantedProgram planted = MissingNotify();
  for (const int workers : {1, 3}) {
    CpuExecutorOptions options;
    options.workers = workers;
    options.timeout_ns = 200'000'000;
    options.ops = &Ops();
    auto executor = MakeCpuExecutor(planted.program, options);
    REQUIRE(executor.ok());
    StepHeader header = {};
    header.symbols[0] = 4;
    for (const int present : {1, 0, 1, 1, 0, 1}) {
      header.symbols[1] = present;
      const absl::Status status = (*executor)->RunStep(header);
      INFO(status);
      CHECK(status.ok() == (present == 1));
      if (present == 1) continue;
      const std::string text(status.message());
      CHECK(text.find("second, task (") != std::string::npos);
      CHECK(text.find("event y_done[0], which has 0 of 4 arrivals") != std::string::npos);
    }
  }
}

TEST_CASE("steps submitted together count as one, and none runs behind an aborted one") {
  const PlantedProgram planted = MissingNotify();
  CpuExecutorOptions options;
  options.timeout_ns = 200'000'000;
  options.ops = &Ops();
  auto executor = MakeCpuExecutor(planted.program, options);
  REQUIRE(executor.ok());
  StepHeader good = {}, stuck = {};
  good.symbols[0] = stuck.symbols[0] = 4;
  good.symbols[1] = 1;
  for (const bool fails : {false, true, false}) {
    const StepHeader steps[4] = {good, fails ? stuck : good, stuck, stuck};
    const auto start = std::chrono::steady_clock::now();
    REQUIRE((*executor)->SubmitAll(std::span(steps).first(fails ? 4 : 2)).ok());
    CHECK((*executor)->Wait().ok() == !fails);
    CHECK((*executor)->Wait().code() == absl::StatusCode::kFailedPrecondition);
    // The first one has nothing before it; the last one an aborted one, whose end means nothing.
    CHECK(((*executor)->LastGapMs() >= 0) == fails);
    // Three that were stuck would have taken 0.6 s.
    if (fails) CHECK(std::chrono::steady_clock::now() - start < std::chrono::milliseconds(550));
  }
}

TEST_CASE("the gap before a step is the time since the end of the one before it") {
  absl::StatusOr<Program> program = Lower(Pair());
  REQUIRE(program.ok());
  CpuExecutorOptions options;
  options.ops = &Ops();
  auto executor = MakeCpuExecutor(*std::move(program), options);
  REQUIRE(executor.ok());
  StepHeader header = {};
  header.symbols[0] = 7;
  REQUIRE((*executor)->RunStep(header).ok());
  CHECK((*executor)->LastGapMs() < 0);
  const auto ended = std::chrono::steady_clock::now();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  // Two in flight: each has its own.
  REQUIRE((*executor)->Submit(header).ok());
  REQUIRE((*executor)->Submit(header).ok());
  const std::chrono::duration<double, std::milli> all = std::chrono::steady_clock::now() - ended;
  REQUIRE((*executor)->Wait().ok());
  const double first = (*executor)->LastGapMs(), step = (*executor)->LastStepMs();
  CHECK(first >= 20);
  REQUIRE((*executor)->Wait().ok());
  CHECK((*executor)->LastGapMs() >= 0);
  CHECK(first + step + (*executor)->LastGapMs() + (*executor)->LastStepMs() < all.count() + 1);
}

// One worker takes tasks in linear order, so it is stuck at the oldest that can be.
TEST_CASE("of all the waits behind one fault, the oldest task's is told by any number of workers") {
  constexpr uint64_t kTimeoutNs = 150'000'000;
  int stuck = 0;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    absl::StatusOr<Program> program = Lower(RandomRuntimeGraph(seed));
    REQUIRE(program.ok());
    ProgramEvent& event = program->events[seed % program->events.size()];
    event.target = event.target + Expr(1);
    StepHeader header = {};
    header.symbols[0] = kRuntimeSymbolMax[0];
    header.symbols[1] = kRuntimeSymbolMax[1];
    std::string expected;
    for (const auto& [workers, policy] :
         {std::pair(1, "static"), std::pair(3, "static"), std::pair(7, "ticket")}) {
      CpuExecutorOptions options;
      options.workers = workers;
      options.policy = policy;
      options.timeout_ns = kTimeoutNs;
      options.ops = &Ops();
      auto executor = MakeCpuExecutor(*program, options);
      REQUIRE(executor.ok());
      FillTensors(**executor, seed);
      const absl::Status status = (*executor)->RunStep(header);
      const std::string text(status.message());
      if (workers == 1 && status.ok()) break;  // nobody waits for it
      INFO(text << "\nexpected: " << expected);
      REQUIRE(absl::IsDeadlineExceeded(status));
      const std::string task = text.substr(text.find(" at "));
      if (workers == 1) {
        expected = task;
        ++stuck;
      }
      CHECK(task == expected);
    }
  }
  CHECK(stuck >= 4);
}

TEST_CASE("steps that the program does not allow are refused, and nothing is enqueued") {
  const PlantedProgram planted = MissingNotify();
  CpuExecutorOptions options;
  options.workers = 2;
  options.ops = &Ops();
  auto made = MakeCpuExecutor(planted.program, options);
  REQUIRE(made.ok());
  Executor& executor = **made;
  StepHeader header = {};
  header.symbols[0] = 9;
  header.symbols[1] = 1;
  const absl::Status refused = executor.Submit(header);
  CHECK(
      std::string(refused.message()).find("symbol rows is 9, outside its declared range [1, 8]") !=
      std::string::npos);
  CHECK_FALSE(executor.Wait().ok());
  header.symbols[0] = 8;
  header.rows = 2;
  CHECK_FALSE(executor.Submit(header).ok());  // more rows than their capacity
  header.rows = 0;
  CHECK(executor.Submit(header).ok());
  CHECK(executor.Submit(header).ok());
  CHECK_FALSE(executor.Submit(header).ok());
  CHECK(executor.Wait().ok());
  CHECK(executor.Wait().ok());
  const Buffer y = executor.TensorBuffer(planted.y);
  char byte = 0;
  CHECK(y.bytes == 8 * kRecordBytes);
  CHECK_FALSE(executor.Read(y, y.bytes, &byte, 1).ok());
  CHECK_FALSE(executor.Write(y, -1, &byte, 1).ok());
  options.policy = "fastest";
  const auto unknown = MakeCpuExecutor(planted.program, options);
  REQUIRE_FALSE(unknown.ok());
  CHECK(std::string(unknown.status().message()).find("auto, static, ticket") != std::string::npos);
}

TEST_CASE("tokens are summed from rows whose length only the device knows") {
  Graph g("sum");
  const Expr tokens = g.AddSymbol("tokens", 0, 16);
  const TensorId weights = g.AddTensor("weights", DType::kU8, {4096}, TensorRole::kWeight);
  const TensorId y = g.AddTensor("y", DType::kU8, {tokens, kRecordBytes}, TensorRole::kOutput);
  g.Call<PageSum1>("only", {weights, weights, weights, y}, {1, 1, 1, {{-1, 1}, {-1, 0}}, 1},
                   {tokens});
  const absl::StatusOr<Program> program = Lower(g);
  INFO(program.status());
  REQUIRE(program.ok());
  CpuExecutorOptions options;
  options.workers = 2;
  options.ops = &Ops();
  auto made = MakeCpuExecutor(*program, options);
  REQUIRE(made.ok());
  Executor& executor = **made;
  const Row rows[3] = {{0, 3, 0, 0}, {1, kDeviceKnows, 2, 0}, {2, kDeviceKnows, 0, 0}};
  SlotState slots[3] = {};
  slots[1].pace = 2;  // as many drafts as the row may have
  slots[2].pace = kPaceEnded;
  const auto rows_buffer = executor.AllocateBuffer(sizeof(rows));
  const auto slots_buffer = executor.AllocateBuffer(sizeof(slots));
  REQUIRE(executor.Write(*rows_buffer, 0, rows, sizeof(rows)).ok());
  REQUIRE(executor.Write(*slots_buffer, 0, slots, sizeof(slots)).ok());
  StepHeader header = {};
  header.rows = header.rows_capacity = 3;
  header.rows_ptr = rows_buffer->address;
  header.slot_state_ptr = slots_buffer->address;
  header.symbols[0] = kSumOfRows;
  const absl::Status status = executor.RunStep(header);
  INFO(status);
  REQUIRE(status.ok());
  uint32_t content[16 * kRecordWords];
  REQUIRE(executor.Read(executor.TensorBuffer(y), 0, content, sizeof(content)).ok());
  // 3 + (1 + 2) + 0 tasks have written.
  for (int task = 0; task < 16; ++task) CHECK((content[task * kRecordWords] != 0) == (task < 6));
}

}  // namespace
}  // namespace eventide
