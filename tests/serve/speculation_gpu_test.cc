// The same on a GPU, where two steps are in flight: lengths of the second are decided by the first.
#include "runtime/cuda_device.h"
#include "tests/serve/speculation_case.h"

namespace eventide {
namespace {

bool HaveGpu() {
  std::string why;
  const bool have = CudaAvailable(&why);
  if (!have) Skip(why);
  return have;
}

TEST_CASE("on a GPU drafts of the device's own change no token, for every draft length") {
  if (HaveGpu()) CheckOwnDrafts("cuda");
}

TEST_CASE("on a GPU forced drafts, right, wrong and anything between, change no token") {
  if (HaveGpu()) CheckForcedDrafts("cuda");
}

}  // namespace
}  // namespace eventide
