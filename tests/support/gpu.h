// How a test says that it needs a GPU: without one it is skipped, with the reason.
#pragma once

#include <string>

#include "runtime/cuda_device.h"
#include "tests/support/test.h"

namespace eventide {

inline bool HaveGpu() {
  std::string why;
  if (CudaAvailable(&why)) return true;
  Skip(why);
  return false;
}

}  // namespace eventide
