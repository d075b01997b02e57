// Expert routing, speculative acceptance, block-sparse attention and early exit, as toy graphs:
// under random schedules in the simulator, and on threads, they give what a sequential run gives.
#include "runtime/cpu_executor.h"
#include "runtime/sim_executor.h"
#include "schedulers/scheduler.h"
#include "tests/support/graphs.h"
#include "stress/random_graph.h"
#include "tests/support/sequential.h"
#include "tests/support/test.h"

namespace eventide {
namespace {

// Toy ops know no storage type.
template <class Op>
struct Untyped : Op {
  template <class T, class W>
  static EVT_FN void Compute(W& w, const Task<typename Op::Params>& t) {
    Op::Compute(w, t);
  }
};

template <class Worker, class W, class... Ops>
OpTable<W> TableOf() {
  OpTable<W> table;
  (AddOp<Untyped<Ops>, Worker, W>(table), ...);
  return table;
}
template <class Worker, class W>
OpTable<W> ToyOps() {
  return TableOf<Worker, W, Mix0, Mix1, Mix2, Mix3, ToyChoose, ToyDispatch, ToyTile, ToyGatherRange,
                 ToyPair, ToySelect, ToyExit, ToyStart, ToyCombine, ToyGroupSum>();
}

// Runs one step with the values of `seed` and compares every output, word by word.
void CheckStep(Executor& executor, const Program& program, const SymbolValues& symbols,
               uint64_t seed) {
  ToySequential sequential(program, symbols, seed);
  StepHeader header = {};
  for (size_t i = 0; i < symbols.size(); ++i) header.symbols[i] = static_cast<int32_t>(symbols[i]);
  for (size_t t = 0; t < program.tensors.size(); ++t) {
    const Buffer buffer = executor.TensorBuffer(static_cast<int>(t));
    REQUIRE(executor.Write(buffer, 0, sequential.memory()[t].data(), buffer.bytes).ok());
  }
  sequential.Run();
  const absl::Status status = executor.RunStep(header);
  INFO(status);
  REQUIRE(status.ok());
  for (size_t t = 0; t < program.tensors.size(); ++t) {
    if (program.tensors[t].role != TensorRole::kOutput) continue;
    const Buffer buffer = executor.TensorBuffer(static_cast<int>(t));
    std::vector<int32_t> words(static_cast<size_t>(buffer.bytes) / 4);
    REQUIRE(executor.Read(buffer, 0, words.data(), buffer.bytes).ok());
    for (size_t i = 0; i < words.size(); ++i)
      REQUIRE(words[i] == sequential.Value(static_cast<int>(t), i));
  }
}

void CheckGraph(const Graph& graph) {
  static const CpuOpTable cpu_ops = ToyOps<CpuWorker<kCpuPortable>, CpuWorkerBase>();
  static const SimOpTable sim_ops = ToyOps<SimWorker, SimWorker>();
  const absl::StatusOr<Program> program = Lower(graph);
  INFO(program.status());
  REQUIRE(program.ok());
  RuntimeRandom random(5);
  const auto symbols = [&] {
    SymbolValues values;
    for (const SymbolDecl& symbol : program->symbols)
      values.push_back(symbol.min + random.Below(static_cast<int>(symbol.max - symbol.min) + 1));
    return values;
  };
  for (const Scheduler& scheduler : Schedulers()) {
    SimExecutorOptions options;
    options.ops = &sim_ops;
    options.policy = scheduler.name;
    options.workers = 3;
    auto sim = MakeSimExecutor(*program, options);
    INFO(sim.status());
    REQUIRE(sim.ok());
    for (uint64_t seed = 0; seed < 60; ++seed)
      CheckStep((*sim)->executor(), *program, symbols(), seed);
    for (const int workers : {1, 2, 7}) {
      CpuExecutorOptions cpu_options;
      cpu_options.ops = &cpu_ops;
      cpu_options.policy = scheduler.name;
      cpu_options.workers = workers;
      auto cpu = MakeCpuExecutor(*program, cpu_options);
      REQUIRE(cpu.ok());
      for (uint64_t seed = 0; seed < 10; ++seed) CheckStep(**cpu, *program, symbols(), seed);
    }
  }
}

TEST_CASE("mixture of experts runs the same in the simulator, on threads and in sequence") {
  CheckGraph(ToyMoeGraph());
}
TEST_CASE("speculative acceptance runs the same in the simulator, on threads and in sequence") {
  CheckGraph(ToySpeculationGraph());
}
TEST_CASE("block-sparse attention runs the same in the simulator, on threads and in sequence") {
  CheckGraph(ToySparseAttentionGraph());
}
TEST_CASE("early exit runs the same in the simulator, on threads and in sequence") {
  CheckGraph(ToyEarlyExitGraph());
}
TEST_CASE("layers that share scratch run the same in the simulator, on threads and in sequence") {
  CheckGraph(ToyLayersSharedGraph());
}

}  // namespace
}  // namespace eventide
