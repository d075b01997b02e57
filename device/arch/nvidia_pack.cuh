// The kernel that packs weights (device/pack.h). A launch fills one PackOrder, with any number of blocks:
// each takes part after part. Tiles: a warp writes fragments, 256 bytes with one instruction.
#pragma once

#include "device/pack.h"

namespace eventide {

inline constexpr u32 kPackThreads = 256;  // of a block; runtime/cuda_packer.cc launches as many
inline constexpr i32 kPartFragments = 64;  // of a tile: enough that looking up its rows costs nothing

EVT_FN void PackTiles(const PackOrder& order, PackRow* rows) {
  const i32 fragments = static_cast<i32>(PackedTile(order.height, order.columns) / kFragment);
  const i32 parts = CeilDiv(fragments, kPartFragments);
  const i32 units = order.rows / order.height * parts;
  u64* to = reinterpret_cast<u64*>(order.to);
  EVT_ROLLED
  for (i32 unit = static_cast<i32>(blockIdx.x); unit < units; unit += static_cast<i32>(gridDim.x)) {
    const i32 tile = unit / parts, first = unit % parts * kPartFragments;
    __syncthreads();  // nobody reads the rows of the unit before
    EVT_ROLLED
    for (i32 r = static_cast<i32>(threadIdx.x); r < order.height; r += kPackThreads)
      rows[r] = FindPackRow(order, tile * order.height + r);
    __syncthreads();
    const i32 quarters = Min(fragments - first, kPartFragments) * kPackQuarters;
    u64* unit_to = to + (static_cast<i64>(tile) * fragments + first) * kPackQuarters;
    EVT_ROLLED
    for (i32 i = static_cast<i32>(threadIdx.x); i < quarters; i += kPackThreads)
      unit_to[i] = PackFour(order, rows, first + i / kPackQuarters, i % kPackQuarters);
  }
}

EVT_FN void PackRows(const PackOrder& order) {
  const u64 elements = static_cast<u64>(order.rows) * static_cast<u64>(order.columns);
  u16* to = reinterpret_cast<u16*>(order.to);
  EVT_ROLLED
  for (u64 i = u64{blockIdx.x} * kPackThreads + threadIdx.x; i < elements;
       i += u64{gridDim.x} * kPackThreads) {
    to[i] = PackPlain(order, i);
  }
}

}  // namespace eventide

extern "C" __global__ void __launch_bounds__(eventide::kPackThreads)
    eventide_pack_tiles(eventide::PackOrder order) {
  __shared__ eventide::PackRow rows[eventide::kPackHeight];
  eventide::PackTiles(order, rows);
}
extern "C" __global__ void __launch_bounds__(eventide::kPackThreads)
    eventide_pack_rows(eventide::PackOrder order) {
  eventide::PackRows(order);
}
