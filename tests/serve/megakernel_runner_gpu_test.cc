// The same on a GPU, in bfloat16.
#include "tests/serve/runner_cases.h"
#include "tests/support/gpu.h"

namespace eventide {
namespace {

TEST_CASE("on a GPU requests get the same tokens alone, batched and preempted") {
  if (!HaveGpu()) return;
  CheckCompany("cuda", DType::kBF16);
}

TEST_CASE(
    "on a GPU logits have the same bits whether a prefix was found in the cache or computed") {
  if (!HaveGpu()) return;
  CheckHitBits("cuda", DType::kBF16, {15, 16, 17, 33, 64, 65, 150}, 20,
               (0 + 0 + 16 + 16 + 32 + 64 + 64) + (0 + 0 + 16 + 32 + 48 + 64 + 144));
}

TEST_CASE("on a GPU a step of no rows is legal and changes nothing") {
  if (!HaveGpu()) return;
  CheckZeroRows("cuda", DType::kBF16);
}

}  // namespace
}  // namespace eventide
