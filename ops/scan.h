// Prefix sums by the threads of a compute role.
#pragma once

#include "device/base.h"

namespace eventide {

// Replaces each of `arrays` (at most 8) arrays values[a * stride, a * stride + n), visible to all threads, by
// the sums of those before; totals[a] is the sum of all. Barriers before and after. Several arrays at once,
// since every call is compiled where it stands.
template <class W>
EVT_FN void ScanExclusive(W& w, i32* values, i32 arrays, i32 stride, i32 n, i32* totals) {
  w.Sync();
  w.ScanRows(values, arrays, stride, n, totals);
  w.Sync();
}

}  // namespace eventide
