// A KV page as attention reads it, and the limits that size what it keeps.
#pragma once

#include "device/base.h"

namespace eventide {

inline constexpr i32 kMaxHeadDim = 256;
inline constexpr i32 kMaxKvPageTokens = 64;   // the smallest chunk (ops/chunks.h): no page crosses its end
inline constexpr i32 kMaxAttentionRows = 64;  // (query token, head) pairs of one task

// One page of keys or of values, in pieces of 1 << shift tokens, head_dim elements each.
template <class T, class Page>
struct KvView {
  Page page;
  i32 shift, head_dim;

  EVT_FN const T* Token(i32 s) const {
    const T* piece = reinterpret_cast<const T*>(page.Piece(s >> shift));
    return piece + (s & ((1 << shift) - 1)) * head_dim;
  }
};
inline constexpr i32 kOnePiece = 30;  // shift of a page that is one piece

}  // namespace eventide
