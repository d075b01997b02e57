// The CUDA backend: one cooperative launch of the generated megakernel per step, on one stream, at
// most two in flight.
#pragma once

#include <memory>

#include "jit/kernel.h"
#include "runtime/cuda_device.h"
#include "runtime/device_packer.h"
#include "runtime/executor.h"

namespace eventide {

struct CudaExecutorOptions : ExecutorOptions {
  int device = 0;  // ordinal among the visible ones
  // Of another executor: the steps and copies of both are in the order in which they were submitted.
  std::shared_ptr<CudaDevice> shared;
  KernelOptions kernel;
  bool time_steps = false;  // LastStepMs, LastGapMs; costs about a microsecond per step
};

// What starting one found; for tables and messages.
struct CudaReport {
  std::string gpu;  // its name
  const GpuArch* arch = nullptr;
  int multiprocessors = 0;
  int driver_version = 0;  // 13000 for 13.0
  int dynamic_shared_bytes = 0;
  KernelUsage usage;
  bool compiled = false;
  std::string cache_note;
  int64_t cubin_bytes = 0;
};

class CudaExecutor : public Executor {
 public:
  virtual const CudaReport& report() const = 0;
  virtual std::shared_ptr<CudaDevice> device() const = 0;
  // Whether the oldest step in flight has ended: Wait would not block.
  virtual absl::StatusOr<bool> Done() = 0;
  // Fills tensors on the GPU itself, ordered before steps submitted later; for the executor's thread, and
  // gone before the executor. Needs KernelOptions::packer.
  virtual absl::StatusOr<std::unique_ptr<DevicePacker>> MakePacker() = 0;
};

// Of this process so far.
struct KernelCounts {
  uint64_t compilations = 0;  // runs of a compiler
  uint64_t kernels = 0;       // made or taken from the cache: one for each program and architecture
};
KernelCounts CountKernels();

absl::StatusOr<std::unique_ptr<CudaExecutor>> MakeCudaExecutor(Program program,
                                                               const CudaExecutorOptions& options);

}  // namespace eventide
