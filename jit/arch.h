// One row per GPU architecture that megakernels are compiled for: everything about an architecture
// that the host has to know. What differs in kernels is a file in device/arch/.
#pragma once

#include "absl/types/span.h"
#include "core/status.h"

namespace eventide {

struct GpuArch {
  const char* name;    // what NVRTC calls it: --gpu-architecture=sm_90a
  int major, minor;    // compute capability
  int shared_bytes;    // shared memory one block may have (opt-in), in bytes
  const char* header;  // device/arch/...: the port
  int stream_floor;    // pages of the stream lane that the port's tiles hold at once (its kLongFloor)
  bool bulk_copy;      // cp.async.bulk and mbarrier transactions
  bool setmaxnreg;     // registers move between warpgroups
  bool wgmma;
  bool tensor_maps;  // pages are copied as boxes of tensor maps (device/op.h)
  bool cluster_launch_control;
};

absl::Span<const GpuArch> GpuArchs();

// The row for a device of this compute capability; exact, because "a" code runs on its own minor
// only.
absl::StatusOr<const GpuArch*> ArchFor(int major, int minor);
// By name, such as "sm_90a" (as in `inspect --arch`).
absl::StatusOr<const GpuArch*> ArchByName(absl::string_view name);

}  // namespace eventide
