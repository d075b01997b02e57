// The speed at which a plain program reads memory on the device that runs the steps: what floors of step times
// are made of. Measured before the model takes the memory and again at the end; the best counts.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/cuda_probe.h"

namespace eventide {

class ReadCeiling {
 public:
  static absl::StatusOr<ReadCeiling> Open(const std::string& device, int workers);
  absl::Status Measure();
  // What is left for the model and its KV.
  absl::StatusOr<int64_t> FreeBytes() const;
  double gbps() const { return gbps_; }
  const std::string& name() const { return name_; }

 private:
  std::unique_ptr<CudaProbe> probe_;
  int threads_ = 1;
  double gbps_ = 0;
  std::string name_;
};

}  // namespace eventide
