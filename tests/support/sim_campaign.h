// Many schedules of many random graphs, each compared word by word with one worker's sequential
// run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/cpu_executor.h"
#include "runtime/sim_executor.h"
#include "schedulers/scheduler.h"
#include "stress/graph_case.h"
#include "stress/random_graph.h"
#include "tests/support/runtime_ops.h"

namespace eventide {

struct CampaignResult {
  int64_t schedules = 0, deadlocks = 0, wrong_values = 0, other_errors = 0, refused = 0;
  int64_t switches = 0;
  std::string first;  // the first failure: its graph, symbols, seed and text
};

// `per_graph` schedules of the graph: random symbols, workers, pages and policy, `per_setting`
// seeds each.
inline void RunCampaignGraph(uint64_t graph_seed, int per_graph, int per_setting,
                             const SimControls& controls, CampaignResult& result) {
  static const CpuOpTable cpu_ops = RuntimeTestOps<CpuWorker<kCpuPortable>, CpuWorkerBase>();
  static const SimOpTable sim_ops = RuntimeTestOps<SimWorker, SimWorker>();
  const auto fail = [&](int64_t& counter, const std::string& text) {
    ++counter;
    if (result.first.empty()) result.first = absl::StrCat("graph ", graph_seed, ": ", text);
  };
  const absl::StatusOr<Program> program = Lower(RandomRuntimeGraph(graph_seed));
  if (!program.ok()) return fail(result.refused, std::string(program.status().message()));
  CpuExecutorOptions reference_options;
  reference_options.workers = 1;
  reference_options.ops = &cpu_ops;
  auto reference = MakeCpuExecutor(*program, reference_options);
  EVT_CHECK(reference.ok());
  RuntimeRandom random(graph_seed + 99);
  for (int done = 0; done < per_graph; done += per_setting) {
    SimExecutorOptions options;
    options.workers = 1 + random.Below(5);
    options.pages = 4 + random.Below(5);
    options.policy = Schedulers()[static_cast<size_t>(random.Below(3))].name;
    options.ops = &sim_ops;
    options.controls = controls;
    auto sim = MakeSimExecutor(*program, options);
    EVT_CHECK(sim.ok());
    Executor& executor = (*sim)->executor();
    StepHeader header = {};
    for (int s = 0; s < kRuntimeSymbols; ++s)
      header.symbols[s] = random.Chance(30) ? 0 : random.Below(kRuntimeSymbolMax[s] + 1);
    FillTensors(**reference, graph_seed + static_cast<uint64_t>(done));
    EVT_CHECK((*reference)->RunStep(header).ok());
    const auto expected = TensorContents(**reference);
    for (int i = 0; i < per_setting; ++i) {
      const uint64_t seed = graph_seed * 1'000'003 + static_cast<uint64_t>(done + i);
      (*sim)->SetSeed(seed);
      FillTensors(executor, graph_seed + static_cast<uint64_t>(done));
      const absl::Status status = executor.RunStep(header);
      ++result.schedules;
      result.switches += static_cast<int64_t>((*sim)->trace().switches);
      const std::string where = absl::StrCat("a=", header.symbols[0], " b=", header.symbols[1],
                                             " workers ", options.workers, " pages ", options.pages,
                                             " ", options.policy, " seed ", seed, ": ");
      if (absl::IsDeadlineExceeded(status)) {
        fail(result.deadlocks, where + std::string(status.message()));
      } else if (!status.ok()) {
        fail(result.other_errors, where + std::string(status.message()));
      } else if (TensorContents(executor) != expected) {
        fail(result.wrong_values, where + "wrong values");
      }
    }
  }
}

inline CampaignResult RunCampaign(uint64_t first_graph, int graphs, int per_graph, int per_setting,
                                  const SimControls& controls = {}) {
  CampaignResult result;
  for (int i = 0; i < graphs; ++i)
    RunCampaignGraph(first_graph + static_cast<uint64_t>(i), per_graph, per_setting, controls,
                     result);
  return result;
}

}  // namespace eventide
