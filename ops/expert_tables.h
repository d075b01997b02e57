// How a layer's tokens are handed to its experts: written by `route`, read by expert linears and
// `combine`.
//
// A (token, rank) pair is one of the experts chosen for a token, best first. Pairs are grouped by expert into
// slots: an expert's slots are consecutive and begin at a multiple of 8 (a group of activations), so that
// what one expert linear leaves is laid out as the next one reads it. An expert without tokens has no slots.
#pragma once

#include "device/base.h"

namespace eventide {

inline constexpr i32 kExpertTileSlots = 32;  // of one expert, that a task of an expert linear takes

struct RoutedPair {
  i32 expert;
  i32 order;     // among the pairs of its expert in its group of 8 tokens
  float weight;  // of the expert's output in the token's sum
  i32 spare;
};
static_assert(sizeof(RoutedPair) == 16, "RoutedPair");

// The expert linears of a layer.
enum ExpertLinear : i32 { kExpertDown, kExpertUp, kExpertLinears };  // `up`: gate and up, gathers

// One tile of an expert's slots. Behind the last tile stands one more with the end of all slots as `group`.
struct ExpertTile {
  i32 expert;
  i32 group;  // first slot / 8
  i32 count;  // slots, 1 ... kExpertTileSlots
  u16 rows[kExpertLinears];  // row tiles that a task takes, the same in all lines
};
static_assert(sizeof(ExpertTile) == 16, "ExpertTile");

// The most slots and tiles that `pairs` pairs can fill.
EVT_FN constexpr i64 MostSlots(i64 pairs, i64 experts) {
  return pairs + 7 * Min(pairs, experts);
}
EVT_FN constexpr i64 MostTiles(i64 pairs, i64 experts) {
  return (pairs + (kExpertTileSlots - 1) * Min(pairs, experts)) / kExpertTileSlots;
}

}  // namespace eventide
