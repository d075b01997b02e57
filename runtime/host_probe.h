// What a plain read of this machine's memory reaches: the ceiling that steps on the CPU are held
// against.
#pragma once

#include <cstdint>

#include "core/status.h"

namespace eventide {

// The best of `repeats` reads of `bytes` by `threads` threads, each its own part, in GB/s.
absl::StatusOr<double> HostReadGbps(int threads, int64_t bytes, int repeats);

}  // namespace eventide
