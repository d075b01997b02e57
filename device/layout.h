// Where elements lie: packed weights, activations between ops, the KV cache. The one place that knows;
// ops, the packer (models/pack.cc) and references all use these functions.
#pragma once

#include "device/base.h"

namespace eventide {

// Every linear's K is cut into this many contiguous segments. Each is summed from zero in steps of 16,
// and the segments are added left to right: the reduction tree that all bits depend on. Never changes.
inline constexpr i32 kSegments = 8;
inline constexpr i32 kFragment = 256;  // elements of one 16 x 16 block of packed weights

// Steps of 16 that one segment of a K has, after padding with zeros.
EVT_FN constexpr i32 SegmentSteps(i32 k) {
  return static_cast<i32>((static_cast<u32>(k) + 16 * kSegments - 1) / (16 * kSegments));
}

// Activations: [token / 8][step][segment][2][8 tokens][8 k], 8 x 8 core matrices of 128 bytes (bf16). The
// order of K is the order in which pages of packed weights need it, whatever their tile height.
// Elements of one group of 8 tokens.
EVT_FN constexpr i64 ActivationGroup(i32 k) {
  return static_cast<i64>(SegmentSteps(k)) * kSegments * 128;
}
// Offset within the group of (token % 8 == 0, k index).
EVT_FN i32 ActivationColumn(i32 steps, i32 index) {
  const u32 at = static_cast<u32>(index);
  // Found by three comparisons: a division would take longer than all the rest.
  i32 step = static_cast<i32>(at / 16), segment = 0;
  for (i32 half = kSegments / 2; half > 0; half /= 2) {
    if (step >= half * steps) {
      step -= half * steps;
      segment += half;
    }
  }
  return ((step * kSegments + segment) * 2 + static_cast<i32>(at % 16 / 8)) * 64 + static_cast<i32>(at % 8);
}
EVT_FN i64 ActivationIndex(i32 k, i32 token, i32 index) {
  return (token / 8) * ActivationGroup(k) + ActivationColumn(SegmentSteps(k), index) + token % 8 * 8;
}

// Packed weights: tiles of `height` rows (a multiple of 16): [step][segment][height / 16][fragment].
EVT_FN constexpr i64 PackedTile(i32 height, i32 k) {
  return static_cast<i64>(SegmentSteps(k)) * kSegments * (height / 16) * kFragment;
}
// Fragment that holds (row, index of k), from the start of the packed tensor.
EVT_FN i64 PackedFragment(i32 height, i32 k, i32 row, i32 index) {
  const i32 steps = SegmentSteps(k);
  const i32 block = index / 16;
  const i32 segment = block / steps;
  const i32 step = block - segment * steps;
  return row / height * PackedTile(height, k) +
         (static_cast<i64>(step * kSegments + segment) * (height / 16) + row % height / 16) * kFragment;
}
// The inverse: row (of its tile) and index of k at which fragment `fragment` of a tile, in memory order,
// begins. An index from k on is padding.
struct FragmentPlace {
  i32 row, index;
};
EVT_FN constexpr FragmentPlace PlaceOfFragment(i32 height, i32 k, i32 fragment) {
  const i32 groups = height / 16;
  const i32 at = fragment / groups;
  return {fragment % groups * 16, (at % kSegments * SegmentSteps(k) + at / kSegments) * 16};
}
// Steps (of every segment) that fit a page, for elements of `bytes` bytes.
EVT_FN constexpr i32 StepsPerPage(i32 height, i32 bytes) {
  return static_cast<i32>(kPageBytes) / (kSegments * (height / 16) * kFragment * bytes);
}

// Wide passes, on targets that have them: so many row tiles are multiplied together, K segment after segment, and a page
// has so many steps of one segment, of two of the tiles or of all tokens.
inline constexpr i32 kPassTiles = 4, kPassSteps = 8;

// KV cache, of one layer: [block][k or v][kv_head][slot in block][head_dim]; 64-bit offsets.
struct KvLayout {
  i32 block_size, kv_heads, head_dim;
  EVT_FN u64 Index(u32 block, i32 value, i32 kv_head, i32 slot) const {
    const u32 place = static_cast<u32>(kv_head * block_size + slot);  // of what a block has of keys or values
    const u32 elements = static_cast<u32>(kv_heads * block_size);
    return ((u64{block} * 2 + static_cast<u32>(value)) * elements + place) * static_cast<u32>(head_dim);
  }
};

// Within a token's head_dim elements, targets with banked shared memory exchange 16-byte pieces of 2-byte
// elements by the position's low bits, so that eight positions at one column lie in different banks. The
// mask is 0 where nothing is exchanged.
EVT_FN constexpr i32 KvSwizzle(i32 head_dim) {
  const i32 pieces = head_dim / 8;
  return Min(pieces & -pieces, 8) - 1;
}
EVT_FN constexpr i32 KvColumn(i32 mask, i32 position, i32 d) {
  return ((d / 8) ^ (position & mask)) * 8 + d % 8;
}

}  // namespace eventide
