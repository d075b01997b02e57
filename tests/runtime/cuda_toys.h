// Toy graphs on a GPU, for tests of whole launches.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/cuda_executor.h"
#include "tests/jit/toy_graphs.h"
#include "tests/support/gpu.h"

namespace eventide {

inline int TensorNamed(const Program& program, const std::string& name) {
  for (size_t i = 0; i < program.tensors.size(); ++i) {
    if (program.tensors[i].name == name) return static_cast<int>(i);
  }
  return -1;
}

inline CudaExecutorOptions ToyOptions() {
  CudaExecutorOptions options;
  options.kernel.extra_headers = ToyHeaders();
  options.timeout_ns = 2'000'000'000;
  options.time_steps = true;
  return options;
}

inline std::unique_ptr<CudaExecutor> Make(const Graph& graph, const CudaExecutorOptions& options) {
  absl::StatusOr<Program> program = Lower(graph);
  INFO(program.status().ToString());
  REQUIRE(program.ok());
  absl::StatusOr<std::unique_ptr<CudaExecutor>> executor =
      MakeCudaExecutor(*std::move(program), options);
  INFO(executor.status().ToString());
  REQUIRE(executor.ok());
  return *std::move(executor);
}

inline StepHeader HeaderFor(int tokens) {
  StepHeader header = {};
  header.symbols[0] = tokens;
  return header;
}

inline void RequireOk(const absl::Status& status) {
  INFO(status.ToString());
  REQUIRE(status.ok());
}

// The layers' x after a step. x's rows are where the capacity puts them: layers are kToyMaxTokens
// apart.
inline void CheckLayers(CudaExecutor& executor, int tokens, const std::vector<uint32_t>& weights) {
  const Buffer x = executor.TensorBuffer(TensorNamed(executor.program(), "x"));
  std::vector<uint32_t> got(size_t{kToyLayers + 1} * kToyMaxTokens * kToyColumns);
  RequireOk(executor.Read(x, 0, got.data(), static_cast<int64_t>(got.size() * 4)));
  const std::vector<uint32_t> wanted = ToyLayersExpected(tokens, weights);
  int wrong = 0;
  for (int layer = 0; layer <= kToyLayers; ++layer) {
    for (int i = 0; i < tokens * kToyColumns; ++i) {
      wrong += got[layer * kToyMaxTokens * kToyColumns + i] !=
               wanted[static_cast<size_t>(layer) * tokens * kToyColumns + i];
    }
  }
  INFO("tokens " << tokens << ", workers " << executor.workers());
  CHECK(wrong == 0);
}

}  // namespace eventide
