#include "runtime/cuda_executor.h"
#include "tests/ops/page_sum_case.h"
#include "tests/support/gpu.h"

namespace eventide {
namespace {

TEST_CASE("checksums on a GPU read all of their pages once and in order") {
  if (!HaveGpu()) return;
  CheckPageSums({"cuda", kCudaBackend, 0, "static"});
}

}  // namespace
}  // namespace eventide
