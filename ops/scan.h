// Prefix sums by the threads of a compute role.
#pragma once

#include "device/base.h"

namespace eventide {

inline constexpr i32 kScanSegments = 32;

// Replaces each of `arrays` arrays values[a * stride, a * stride + n), visible to all threads, by the sums of
// those before; totals are at ScanTotal(sums, a). `sums` has kScanSums elements for each array, of its own.
// Barriers before and after. Several arrays at once, since every call is compiled where it stands.
inline constexpr i32 kScanSums = kScanSegments + 1;

template <class W>
EVT_FN void ScanExclusive(W& w, i32* values, i32 arrays, i32 stride, i32 n, i32* sums) {
  const i32 length = CeilDiv(n, kScanSegments);
  w.Sync();
  w.Parallel(arrays * kScanSegments, [&](i32 i) {
    const i32 array = i / kScanSegments, s = i % kScanSegments;
    const i32* from = values + array * stride;
    i32 sum = 0;
    EVT_ROLLED
    for (i32 k = s * length; k < Min(n, (s + 1) * length); ++k) sum += from[k];
    sums[array * kScanSums + s] = sum;
  });
  w.Sync();
  w.Parallel(arrays, [&](i32 array) {
    i32* mine = sums + array * kScanSums;
    i32 sum = 0;
    EVT_ROLLED
    for (i32 s = 0; s < kScanSegments; ++s) {
      const i32 value = mine[s];
      mine[s] = sum;
      sum += value;
    }
    mine[kScanSegments] = sum;
  });
  w.Sync();
  w.Parallel(arrays * kScanSegments, [&](i32 i) {
    const i32 array = i / kScanSegments, s = i % kScanSegments;
    i32* to = values + array * stride;
    i32 sum = sums[array * kScanSums + s];
    EVT_ROLLED
    for (i32 k = s * length; k < Min(n, (s + 1) * length); ++k) {
      const i32 value = to[k];
      to[k] = sum;
      sum += value;
    }
  });
  w.Sync();
}

EVT_FN i32 ScanTotal(const i32* sums, i32 array) {
  return sums[array * kScanSums + kScanSegments];
}

}  // namespace eventide
