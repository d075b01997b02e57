// Packs weights on a GPU, with the kernels of device/arch/nvidia_pack.cuh that a module built with
// KernelOptions::packer has.
#pragma once

#include <memory>

#include "jit/driver.h"
#include "runtime/device_packer.h"

namespace eventide {

// All in `stream`'s order. The context is current on the calling thread whenever the packer is used; it,
// the module and the stream outlive the packer.
absl::StatusOr<std::unique_ptr<DevicePacker>> MakeCudaPacker(const CudaDriver* driver,
                                                             CuModule module, CuStream stream,
                                                             int multiprocessors);

}  // namespace eventide
