// What can be known before a kernel is compiled: whether it will load and its tensors will fit. An
// error then costs milliseconds and not a compilation.
#pragma once

#include <string>

#include "core/program.h"
#include "jit/driver.h"

namespace eventide {

// A driver loads kernels of its own CUDA major version and older ones.
absl::Status CheckCompilerFits(const CudaDriver& driver);

// The program's tensors against the free memory of the current context's GPU, called `gpu`.
absl::Status CheckMemoryFits(const CudaDriver& driver, const Program& program,
                             const std::string& gpu);

}  // namespace eventide
