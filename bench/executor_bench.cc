// executor_bench [WORKERS] [TASKS]: what the CPU executor costs per task, with ops that do nothing:
// a chain of grids, each waiting for all of the one before and notifying one element per four
// tasks.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "core/graph.h"
#include "runtime/cpu_executor.h"
#include "runtime/worker_threads.h"

namespace eventide {
namespace {

struct Nothing {
  static constexpr OpInfo kInfo = {"nothing", 1, {Out("y")}};
  struct Params {
    i32 unused;
  };
  template <class T, class W>
  static EVT_FN void Compute(W&, const Task<Params>&) {}
};

int Main(int workers, int tasks) {
  constexpr int kLayers = 32, kGrids = 4;
  Graph g("chain");
  const Expr n = g.AddSymbol("n", 1, 1024);
  std::vector<TensorId> y;
  std::vector<EventId> done;
  for (int i = 0; i < kGrids; ++i) {
    const std::string id = std::to_string(i);
    y.push_back(g.AddTensor("y" + id, DType::kU8, {kLayers, n}, TensorRole::kOutput));
    done.push_back(g.AddEvents("done" + id, {kLayers, CeilDiv(n, 4)}));
  }
  g.BeginSection("body", kLayers);
  for (int i = 0; i < kGrids; ++i) {
    auto handle = g.Call<Nothing>("grid" + std::to_string(i), {y[i]}, {0}, {n});
    if (i > 0) handle.Wait(done[i - 1], {Layer(), IndexRange(At(0) / 4)});
    handle.Notify(done[i], {Layer(), At(0) / 4});
  }
  absl::StatusOr<Program> program = Lower(g);
  if (!program.ok()) {
    std::fprintf(stderr, "%s\n", program.status().ToString().c_str());
    return 1;
  }
  CpuOpTable ops;
  AddOp<Nothing, CpuWorker<kCpuPortable>, CpuWorkerBase>(ops);
  for (const char* policy : {"static", "ticket"}) {
    CpuExecutorOptions options;
    options.workers = workers;
    options.policy = policy;
    options.ops = &ops;
    auto executor = MakeCpuExecutor(*program, options);
    if (!executor.ok()) return 1;
    StepHeader header = {};
    header.symbols[0] = tasks / (kLayers * kGrids);
    std::vector<uint64_t> times;
    for (int i = 0; i < 200; ++i) {
      const uint64_t start = NowNs();
      if (!(*executor)->RunStep(header).ok()) return 1;
      times.push_back(NowNs() - start);
    }
    std::sort(times.begin(), times.end());
    const double total = double(header.symbols[0]) * kLayers * kGrids;
    std::printf("%s: %d workers, %.0f tasks, step %.1f us, %.0f ns of a worker per task\n", policy,
                workers, total, times[times.size() / 2] / 1e3,
                times[times.size() / 2] * workers / total);
  }
  return 0;
}

}  // namespace
}  // namespace eventide

int main(int argc, char** argv) {
  return eventide::Main(argc > 1 ? std::atoi(argv[1]) : 1, argc > 2 ? std::atoi(argv[2]) : 5120);
}
