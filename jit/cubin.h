// What a kernel uses, read from the cubin (an ELF file) itself rather than from a log that may be
// empty.
#pragma once

#include "jit/nvrtc.h"

namespace eventide {

// Registers, stack, static shared memory, code and launch bounds of `kernel`. The error names what is
// missing.
absl::StatusOr<KernelUsage> ReadCubinUsage(const std::string& cubin, const std::string& kernel);

// Spilled bytes and ignored setmaxnreg from the log of `ptxas -v`. Nothing in the log about the
// kernel is an error, unless the cubin shows that there is no stack and thus no spill.
absl::Status ReadAssemblerLog(const std::string& log, const std::string& kernel,
                              KernelUsage& usage);

}  // namespace eventide
