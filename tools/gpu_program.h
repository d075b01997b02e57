// Programs as GPUs run them, made on any machine: for commands that look at kernels or compile them.
#pragma once

#include "jit/arch.h"
#include "tools/engine_flags.h"

namespace eventide {

// The checkpoint of the flags, with the storage type that a GPU has for it. float32 is a usage error.
absl::StatusOr<OpenedModel> OpenModelForGpu(EngineFlags flags);

// "sm_90a", ...; names that Eventide does not know are a usage error.
absl::StatusOr<std::vector<const GpuArch*>> ArchsNamed(const std::vector<std::string>& names);

}  // namespace eventide
