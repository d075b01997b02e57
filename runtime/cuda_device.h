// A GPU opened for one executor: context and streams.
#pragma once

#include <string>

#include "jit/arch.h"
#include "jit/driver.h"

namespace eventide {

// True where a CUDA driver and a GPU are; otherwise `why` says what is missing.
bool CudaAvailable(std::string* why);

struct CudaDevice {
  const CudaDriver* driver = nullptr;
  CuDevice device = 0;
  CuContext context = nullptr;
  CuStream stream = nullptr;         // steps and copies, in order
  CuStream second_stream = nullptr;  // what must not wait for the steps
  const GpuArch* arch = nullptr;
  int multiprocessors = 0;
  std::string name;

  CudaDevice() = default;
  CudaDevice(const CudaDevice&) = delete;
  ~CudaDevice();

  // `ordinal` among the visible GPUs. The context is current afterwards.
  absl::Status Open(int ordinal);
  // Makes the context current on this thread.
  absl::Status Enter() const;
};

}  // namespace eventide
