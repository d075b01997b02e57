// Sums of port_example.h for workers that are one thread: the 32 lanes of a GPU warp, one by one.
#pragma once

#include "device/base.h"

namespace eventide {

template <class Load>
EVT_FN float LaneSum(i32 row, i32 n, const Load& load) {
  constexpr i32 kLaneCount = 32;
  float lane[kLaneCount] = {};
  for (i32 first = 0; first < n; first += kLaneCount) {
    const i32 count = Min(kLaneCount, n - first);
    for (i32 l = 0; l < count; ++l) lane[l] = Add(lane[l], load(row, first + l));
  }
  for (i32 distance = kLaneCount / 2; distance > 0; distance /= 2) {
    for (i32 l = 0; l < distance; ++l) lane[l] = Add(lane[l], lane[l + distance]);
  }
  return lane[0];
}

// ScanRows of port_example.h.
EVT_FN void ScanRowsInTurn(i32* values, i32 arrays, i32 stride, i32 n, i32* totals) {
  for (i32 a = 0; a < arrays; ++a) {
    i32 sum = 0;
    for (i32 i = 0; i < n; ++i) {
      const i32 value = values[a * stride + i];
      values[a * stride + i] = sum;
      sum += value;
    }
    totals[a] = sum;
  }
}

}  // namespace eventide
