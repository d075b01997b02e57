#include "runtime/cuda_checks.h"

#include <numeric>

#include "absl/strings/str_format.h"
#include "jit/nvrtc.h"
#include "runtime/memory.h"

namespace eventide {

absl::Status CheckCompilerFits(const CudaDriver& driver) {
  ASSIGN_OR_RETURN(const Nvrtc* nvrtc, Nvrtc::Get());
  const int major = driver.version() / 1000, minor = driver.version() % 1000 / 10;
  if (nvrtc->major() <= major) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "NVRTC %d.%d (%s) makes kernels that this driver, of CUDA %d.%d, does not load: update the "
      "driver, or set EVENTIDE_NVRTC to a libnvrtc of CUDA %d",
      nvrtc->major(), nvrtc->minor(), nvrtc->path(), major, minor, major));
}

absl::Status CheckMemoryFits(const CudaDriver& driver, const Program& program,
                             const std::string& gpu) {
  ASSIGN_OR_RETURN(const MemoryPlan plan, PlanMemory(program, {}));
  const int64_t needed = std::accumulate(plan.bytes.begin(), plan.bytes.end(), int64_t{0});
  size_t free = 0, total = 0;
  RETURN_IF_ERROR(driver.Check(driver.MemGetInfo(&free, &total), "asking for the GPU's memory"));
  if (needed <= static_cast<int64_t>(free)) return absl::OkStatus();
  return TooLittleMemory(program, plan, gpu, static_cast<int64_t>(free));
}

}  // namespace eventide
