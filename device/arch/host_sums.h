// Sums and other words of port_example.h for workers that are one thread: the 32 lanes of a GPU warp, one by one.
#pragma once

#include "device/base.h"

namespace eventide {

inline constexpr i32 kMostInRow = 1024;  // values of a row of TopOfRows

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

// A row of TopOfRows of port_example.h.
template <class Key, class Store>
EVT_FN void TopOfRow(i32 row, i32 n, i32 k, const Key& key, const Store& store) {
  u32 taken[kMostInRow / 32] = {};
  for (i32 rank = 0; rank < k; ++rank) {
    i32 best = -1;
    u32 most = 0;
    for (i32 i = 0; i < n; ++i) {
      if (taken[i / 32] >> (i % 32) & 1) continue;
      const u32 mine = key(row, i);
      if (best >= 0 && mine <= most) continue;
      best = i;
      most = mine;
    }
    if (best < 0) return;
    taken[best / 32] |= 1u << (best % 32);
    store(row, rank, best);
  }
}

// Words of port_example.h for workers W that are one thread: they follow from its Parallel.
template <class W>
struct HostWords {
  template <class From>
  EVT_FN void Bring(float* to, i32 rows, i32 n, const From& from) {
    for (i32 row = 0; row < rows; ++row) __builtin_memcpy(to + row * n, from(row), static_cast<u32>(n) * sizeof(float));
  }
  template <class Load, class Store>
  EVT_FN void Fetch(i32 n, const Load& load, const Store& store) {
    Self().Parallel(n, [&](i32 i) { store(i, load(i)); });
  }
  template <class Key, class Store>
  EVT_FN void TopOfRows(i32 rows, i32 n, i32 k, const Key& key, const Store& store) {
    Self().Parallel(rows, [&](i32 row) { TopOfRow(row, n, k, key, store); });
  }
  template <class Load, class Store>
  EVT_FN void RowSums(i32 rows, i32 n, const Load& load, const Store& store) {
    Self().Parallel(rows, [&](i32 row) { store(row, LaneSum(row, n, load)); });
  }
  template <class From, class Store>
  EVT_FN void SumsFrom(i32 rows, i32 n, const From& from, const Store& store) {
    Self().RowSums(rows, n, [&](i32 row, i32 i) { return from(row)[i]; }, store);
  }
  EVT_FN void ScanRows(i32* values, i32 arrays, i32 stride, i32 n, i32* totals) {
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

 private:
  EVT_FN W& Self() { return *static_cast<W*>(this); }
};

}  // namespace eventide
