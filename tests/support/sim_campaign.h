// Many schedules of many random graphs, each compared word by word with one worker's sequential
// run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/cpu_executor.h"
#include "runtime/sim_executor.h"
#include "schedulers/scheduler.h"
#include "tests/support/runtime_graphs.h"

namespace eventide {

struct CampaignResult {
  int64_t schedules = 0, deadlocks = 0, wrong_values = 0, other_errors = 0, refused = 0;
  int64_t switches = 0;
  std::string first;  // the first failure: its graph, symbols, seed and text
};

// Everything a step may have written, after it.
inline std::vector<uint8_t> CampaignContent(Executor& executor) {
  std::vector<uint8_t> content;
  for (size_t t = 0; t < executor.program().tensors.size(); ++t) {
    if (executor.program().tensors[t].role == TensorRole::kWeight) continue;
    const Buffer buffer = executor.TensorBuffer(static_cast<int>(t));
    const size_t at = content.size();
    content.resize(at + static_cast<size_t>(buffer.bytes));
    EVT_CHECK(executor.Read(buffer, 0, content.data() + at, buffer.bytes).ok());
  }
  return content;
}

// Weights and inputs follow from the tensor and the salt; everything else is 0xff, which no count
// may be and every checksum notices.
inline void CampaignFill(Executor& executor, uint64_t salt) {
  for (size_t t = 0; t < executor.program().tensors.size(); ++t) {
    const Buffer buffer = executor.TensorBuffer(static_cast<int>(t));
    const TensorRole role = executor.program().tensors[t].role;
    std::vector<uint8_t> bytes(static_cast<size_t>(buffer.bytes), 0xff);
    if (role == TensorRole::kWeight || role == TensorRole::kInput) {
      for (size_t i = 0; i < bytes.size(); ++i)
        bytes[i] = static_cast<uint8_t>((i * 0x9e3779b1u + (t + salt) * 0x85ebca6bu) >> 13);
    }
    EVT_CHECK(executor.Write(buffer, 0, bytes.data(), buffer.bytes).ok());
  }
}

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
    CampaignFill(**reference, graph_seed + static_cast<uint64_t>(done));
    EVT_CHECK((*reference)->RunStep(header).ok());
    const std::vector<uint8_t> expected = CampaignContent(**reference);
    for (int i = 0; i < per_setting; ++i) {
      const uint64_t seed = graph_seed * 1'000'003 + static_cast<uint64_t>(done + i);
      (*sim)->SetSeed(seed);
      CampaignFill(executor, graph_seed + static_cast<uint64_t>(done));
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
      } else if (CampaignContent(executor) != expected) {
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
