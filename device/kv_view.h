// A KV page as attention reads it, and the limits that size what it keeps.
#pragma once

#include "device/base.h"

namespace eventide {

inline constexpr i32 kMaxHeadDim = 256;
inline constexpr i32 kMaxKvPageTokens = 64;   // the smallest chunk (ops/chunks.h): no page crosses its end
inline constexpr i32 kMaxAttentionRows = 32;  // (query token, head) pairs of one task
inline constexpr i32 kMaxAttentionElements = 2048;  // of all of them together, 2 bytes each
inline constexpr i32 kMaxLongRows = 128;            // likewise, of rows of many query tokens

// The keys or the values of one page, head_dim elements each, in pieces of 1 << shift tokens: pieces
// first_piece and following; or, if that is 0, `offset` bytes into piece 0.
template <class T, class Page>
struct KvView {
  Page page;
  i32 first_piece, shift, head_dim;
  u32 offset;

  EVT_FN const T* Token(i32 s) const {
    const u8* piece = page.Piece(first_piece + (s >> shift)) + (first_piece == 0 ? offset : 0);
    return reinterpret_cast<const T*>(piece) + (s & ((1 << shift) - 1)) * head_dim;
  }
};
inline constexpr i32 kOnePiece = 30;  // shift of a page that is one piece

// What tiles of many rows have beside their queries: some of Scratch, and pages (LongAttention::kPages).
inline constexpr i32 kMaxLongPages = 2;
struct LongMemory {
  u8* near;
  u8* pages[kMaxLongPages];
};

// The queries of a task's rows, [row][head_dim]: tiles of many rows have half of the most there may be
// (LongAttention::Rows) in a page.
template <class T>
struct QueryRows {
  T *first, *second;
  i32 split;  // rows in front of the second part
  EVT_FN T* At(i32 row, i32 head_dim) const {
    return row < split ? first + row * head_dim : second + (row - split) * head_dim;
  }
};

}  // namespace eventide
