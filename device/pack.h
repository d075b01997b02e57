// Packing weights where they are used: what one element of a packed tensor is, for a GPU's kernel
// (device/arch/nvidia_pack.cuh) and for the same work on the host in tests. A PackOrder says what to fill;
// its spans say where each row comes from: from memory, or drawn at random (models/random_weights.h).
// Elements have two bytes.
#pragma once

#include "device/dtype.h"
#include "device/layout.h"
#include "device/philox.h"

namespace eventide {

enum PackFrom : u32 {
  kPackNothing,    // zeros
  kPackStaged,     // row-major elements in memory, already of the packed type
  kPackDrawn,      // drawn around 0
  kPackDrawnNorm,  // drawn around 1
};

// Packed rows [row, row + rows) are neighbouring rows of one tensor.
struct PackSpan {
  u64 at;   // staged: the address of the first row; drawn: its first element's index in the tensor
  u64 key;  // drawn: of the tensor
  i32 row, rows;
  u32 from;   // PackFrom
  u32 drawn;  // drawn: values are rounded to this Storage<T>::kVariant first, as a checkpoint holds them
};
static_assert(sizeof(PackSpan) == 32, "host and device agree");

struct PackOrder {
  u64 to;           // address of packed row 0
  u64 spans;        // address of PackSpan[span_count]: ascending, disjoint; other rows are zero
  u64 fragment;     // address of u8[kFragment]: row * 16 + k of each element of a fragment
  i32 span_count;
  i32 rows, columns;
  i32 height;  // of tiles, which `rows` is a multiple of; 0: rows are row-major
  u32 type;  // Storage<T>::kVariant of packed elements
  u32 unused;
};
static_assert(sizeof(PackOrder) == 48, "host and device agree");

inline constexpr i32 kPackHeight = 256;  // of the tallest tile
inline constexpr i32 kPackQuarters = kFragment / 4;  // PackFour's parts of a fragment

// Where one packed row comes from.
struct PackRow {
  u64 at, key;
  u32 from, drawn;
};

EVT_FN PackRow FindPackRow(const PackOrder& order, i32 row) {
  const PackSpan* spans = reinterpret_cast<const PackSpan*>(order.spans);
  // Spans before `low` begin at `row` or above it, spans from `high` on below.
  i32 low = 0, high = order.span_count;
  while (low < high) {
    const i32 middle = (low + high) / 2;
    if (spans[middle].row <= row) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  PackRow found = {0, 0, kPackNothing, 0};
  if (low == 0 || row - spans[low - 1].row >= spans[low - 1].rows) return found;
  const PackSpan& span = spans[low - 1];
  const u64 elements = static_cast<u64>(row - span.row) * static_cast<u64>(order.columns);
  found.at = span.at + (span.from == kPackStaged ? 2 * elements : elements);
  found.key = span.key;
  found.from = span.from;
  found.drawn = span.drawn;
  return found;
}

EVT_FN u16 PackedBits(float value, u32 type) {
  return type == Storage<F16>::kVariant ? Storage<F16>::From(value).bits
                                        : Storage<BF16>::From(value).bits;
}

// The bits of element `column` of a row.
EVT_FN u16 PackElement(const PackOrder& order, const PackRow& row, i32 column) {
  if (row.from == kPackNothing) return 0;
  if (row.from == kPackStaged) return reinterpret_cast<const u16*>(row.at)[column];
  const u64 index = row.at + static_cast<u64>(column);
  const PhiloxBlock block = Philox4x32(row.key, index / 4);
  // Not block.lane[index % 4], for which a GPU would need memory.
  const u32 low = index & 1 ? block.lane[1] : block.lane[0];
  const u32 high = index & 1 ? block.lane[3] : block.lane[2];
  float value = DrawWeight(index & 2 ? high : low, row.from == kPackDrawnNorm);
  if (row.drawn == Storage<BF16>::kVariant) value = ToFloat(Storage<BF16>::From(value));
  if (row.drawn == Storage<F16>::kVariant) value = ToFloat(Storage<F16>::From(value));
  return PackedBits(value, order.type);
}

// Elements 4 * quarter ... + 3 of a tile's fragment, the first in the lowest bits. rows[r] is where row
// r of the tile comes from.
EVT_FN u64 PackFour(const PackOrder& order, const PackRow* rows, i32 fragment, i32 quarter) {
  const FragmentPlace place = PlaceOfFragment(order.height, order.columns, fragment);
  const u8* from = reinterpret_cast<const u8*>(order.fragment) + 4 * quarter;
  u64 four = 0;
  EVT_ROLLED
  for (i32 i = 0; i < 4; ++i) {
    const i32 column = place.index + from[i] % 16;
    if (column >= order.columns) continue;
    four |= static_cast<u64>(PackElement(order, rows[place.row + from[i] / 16], column)) << (16 * i);
  }
  return four;
}

// Element number `element` of row-major rows.
EVT_FN u16 PackPlain(const PackOrder& order, u64 element) {
  const u64 row = element / static_cast<u64>(order.columns);
  const i32 column = static_cast<i32>(element - row * static_cast<u64>(order.columns));
  return PackElement(order, FindPackRow(order, static_cast<i32>(row)), column);
}

}  // namespace eventide
