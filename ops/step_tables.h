// The tables of one step that `plan` writes and the other ops read: which token belongs to which
// row, whose logits are wanted, and how attention is cut into items.
#pragma once

#include "device/abi.h"
#include "device/loop.h"
#include "ops/chunks.h"

namespace eventide {

// Elements of the published tensor "counts".
enum StepCount : i32 {
  kCountItems = 0,    // attention items
  kCountOutputs = 1,  // tokens whose logits are wanted
  kCountTokens = 2,
  kCountGroups = 3,  // attention tiles that several items share
  kStepCounts = 4,
};

// A tile of one row's query tokens and a range of chunks. Items that share a tile are its parts:
// the last one to finish merges them in order.
struct AttentionItem {
  i32 row;
  i32 q_first, q_count;        // query tokens, counted within the row
  i32 chunk_first, chunk_end;  // may be empty for a part other than the first
  i32 part, parts;
  i32 group;         // of the tile, among those with several parts
  i32 partial_base;  // first partial slot of the tile
  i32 first_order;   // partials of the tile's earlier parts
  i32 slot;          // of the row
  i32 context;       // positions below it are in the cache (block-sparse: of the picked blocks' sequence)
  i32 appended;      // 1: so are the step's own (ops/append_kv.h), and the tile is one of many rows
};
static_assert(sizeof(AttentionItem) == 52, "AttentionItem");

// Items that a step needs when no tile is split: what the table must at least hold.
EVT_FN constexpr i32 MinAttentionItems(i32 max_rows, i32 max_tokens, i32 head_dim, i32 group,
                                        i32 element_bytes) {
  return max_tokens / AttentionTile(head_dim, group, element_bytes) + max_rows;
}

// The last i in [0, n) with starts[i] <= value; starts ascend and starts[0] <= value. With prefix
// sums this is the row that holds element `value`: empty rows never are.
EVT_FN i32 FindSpan(const i32* starts, i32 n, i32 value) {
  i32 low = 0, high = n;
  while (high - low > 1) {
    const i32 middle = (low + high) / 2;
    if (starts[middle] <= value) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace eventide
