#include <vector>

#include "core/graph.h"
#include "runtime/cpu_executor.h"
#include "tests/support/runtime_ops.h"
#include "tests/support/test.h"

namespace eventide {
namespace {

const CpuOpTable& Ops() {
  static const CpuOpTable table = RuntimeTestOps<CpuWorker<kCpuPortable>, CpuWorkerBase>();
  return table;
}

// Two grids over a symbol: the second reads all that the first wrote.
Graph Pair() {
  Graph g("pair");
  const Expr rows = g.AddSymbol("rows", 0, 40);
  const TensorId weights = g.AddTensor("weights", DType::kU8, {4096}, TensorRole::kWeight);
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

TEST_CASE("the CPU executor gives the same words for any number of workers and policy") {
  for (const int rows : {0, 1, 7, 40}) {
    const std::vector<uint32_t> expected = RunPair(1, "static", rows);
    for (const int workers : {1, 2, 3, 7}) {
      for (const char* policy : {"static", "ticket", "auto"})
        CHECK(RunPair(workers, policy, rows) == expected);
    }
  }
}

}  // namespace
}  // namespace eventide
