// What toy ops share: shapes and a hash.
#pragma once

#include "device/op.h"

namespace eventide {

inline constexpr i32 kToyColumns = 64;
inline constexpr i32 kToyTokens = 8;  // of one task

EVT_FN u32 ToyHash(u32 seed, u32 value) {
  u32 h = (value + seed) * 0x9e3779b1u;
  h ^= h >> 15;
  return h * 0x85ebca77u;
}

}  // namespace eventide
