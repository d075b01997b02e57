#include "tools/read_ceiling.h"

#include <algorithm>
#include <thread>

#include "absl/strings/str_cat.h"
#include "core/status.h"
#include "runtime/host_memory.h"
#include "runtime/host_probe.h"

namespace eventide {
namespace {

constexpr int kReadRepeats = 8;

}  // namespace

absl::StatusOr<ReadCeiling> ReadCeiling::Open(const std::string& device, int workers) {
  ReadCeiling ceiling;
  if (device == "cuda") {
    ASSIGN_OR_RETURN(ceiling.probe_, CudaProbe::Open());
    ceiling.name_ = ceiling.probe_->gpu();
  } else {
    ceiling.threads_ =
        workers > 0 ? workers : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    ceiling.name_ = absl::StrCat(device, ", ", ceiling.threads_, " threads");
  }
  RETURN_IF_ERROR(ceiling.Measure());
  return ceiling;
}

absl::Status ReadCeiling::Measure() {
  // Far beyond any cache of a CPU.
  absl::StatusOr<double> gbps = probe_ != nullptr
                                    ? probe_->ReadGbps(kReadRepeats)
                                    : HostReadGbps(threads_, int64_t{512} << 20, kReadRepeats);
  RETURN_IF_ERROR(gbps.status());
  gbps_ = std::max(gbps_, *gbps);
  return absl::OkStatus();
}

absl::StatusOr<int64_t> ReadCeiling::FreeBytes() const {
  if (probe_ != nullptr) return probe_->FreeBytes();
  return FreeMemoryBytes();
}

}  // namespace eventide
