// Early exit on a GPU: the cases of the CPU.
#include "runtime/cuda_executor.h"
#include "tests/models/exits_case.h"
#include "tests/support/gpu.h"

namespace eventide {
namespace {

ExitSetup OnGpu(DType storage) {
  ExitSetup setup;
  setup.device = "cuda";
  setup.workers = 0;
  setup.storage = storage;
  return setup;
}

TEST_CASE("with nobody who leaves, early exit has the plain decoder's bits on a GPU") {
  if (!HaveGpu()) return;
  for (const char* preset : {"test-llama", "test-qwen3", "test-moe"}) {
    CheckNobodyLeaves(OnGpu(DType::kBF16), preset);
  }
}

TEST_CASE("with everybody leaving at a point, a GPU's logits are those of a decoder that ends there") {
  if (!HaveGpu()) return;
  for (int layer = 1; layer < 5; ++layer) {
    CheckEverybodyLeaves(OnGpu(DType::kBF16), "test-llama", layer);
  }
  CheckEverybodyLeaves(OnGpu(DType::kF16), "test-qwen3", 2);
  CheckEverybodyLeaves(OnGpu(DType::kBF16), "test-qwen2-moe", 2);
}

TEST_CASE("who leaves on a GPU is a matter of each token, whatever it is computed with") {
  if (!HaveGpu()) return;
  for (const char* preset : {"test-llama", "test-qwen3", "test-moe"}) {
    for (const char* policy : {"static", "ticket"}) {
      ExitSetup setup = OnGpu(DType::kBF16);
      setup.threshold = 0.75f;
      setup.policy = policy;
      CheckSomeLeave(setup, preset);
    }
  }
}

}  // namespace
}  // namespace eventide
