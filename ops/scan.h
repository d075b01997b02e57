// Prefix sums by the threads of a compute role.
#pragma once

#include "device/base.h"

namespace eventide {

inline constexpr i32 kScanSegments = 32;

// Replaces values[0, n), visible to all threads, by the sums of those before; returns the total.
// `sums` has kScanSegments + 1 elements, of its own. Barriers before and after.
template <class W>
EVT_FN i32 ScanExclusive(W& w, i32* values, i32 n, i32* sums) {
  const i32 length = CeilDiv(n, kScanSegments);
  w.Sync();
  w.Parallel(kScanSegments, [&](i32 s) {
    i32 sum = 0;
    for (i32 i = s * length; i < Min(n, (s + 1) * length); ++i) sum += values[i];
    sums[s] = sum;
  });
  w.Sync();
  w.Parallel(1, [&](i32) {
    i32 sum = 0;
    for (i32 s = 0; s < kScanSegments; ++s) {
      const i32 value = sums[s];
      sums[s] = sum;
      sum += value;
    }
    sums[kScanSegments] = sum;
  });
  w.Sync();
  w.Parallel(kScanSegments, [&](i32 s) {
    i32 sum = sums[s];
    for (i32 i = s * length; i < Min(n, (s + 1) * length); ++i) {
      const i32 value = values[i];
      values[i] = sum;
      sum += value;
    }
  });
  w.Sync();
  return sums[kScanSegments];
}

}  // namespace eventide
