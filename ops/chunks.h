// How attention cuts a sequence: chunks and KV pages, both fixed by absolute position, so that bits
// depend on neither batch, tiles, parts nor the order in which a prompt arrived.
#pragma once

#include "device/kv_view.h"

namespace eventide {

// Chunks hold 64 positions below 1,024, 256 below 16,384, then 1,024. Each is reduced from zero,
// and chunks are merged left to right.
EVT_FN constexpr i32 ChunkOf(i32 position) {
  if (position < 1024) return position >> 6;
  if (position < 16384) return 16 + ((position - 1024) >> 8);
  return 76 + ((position - 16384) >> 10);
}
EVT_FN constexpr i32 ChunkStart(i32 chunk) {
  if (chunk < 16) return chunk << 6;
  if (chunk < 76) return 1024 + ((chunk - 16) << 8);
  return 16384 + ((chunk - 76) << 10);
}

// Tokens of one KV page, which holds their keys and their values: within a chunk, scores and their running
// maximum go page by page.
EVT_FN constexpr i32 KvPageTokens(i32 head_dim, i32 element_bytes) {
  i32 tokens = kMaxKvPageTokens;
  while (2 * tokens * head_dim * element_bytes > static_cast<i32>(kPageBytes)) tokens /= 2;
  return tokens;
}

// Elements of all query rows (tokens x heads) of one attention task: they are kept in Scratch.
EVT_FN constexpr i32 AttentionElements(i32 element_bytes) {
  return kMaxAttentionElements * 2 / element_bytes;
}
EVT_FN constexpr i32 AttentionRows(i32 head_dim, i32 element_bytes) {
  return Min(AttentionElements(element_bytes) / head_dim, kMaxAttentionRows);
}
// A KV head's query heads are split over this many tasks, each of at most AttentionHeads of them.
EVT_FN constexpr i32 AttentionSplits(i32 head_dim, i32 group, i32 element_bytes) {
  return CeilDiv(group, AttentionRows(head_dim, element_bytes));
}
EVT_FN constexpr i32 AttentionHeads(i32 head_dim, i32 group, i32 element_bytes) {
  return CeilDiv(group, AttentionSplits(head_dim, group, element_bytes));
}
// Query tokens of one task. Rows of many query tokens have larger tiles (LongAttention::Rows of the target).
EVT_FN constexpr i32 AttentionTile(i32 head_dim, i32 group, i32 element_bytes) {
  return AttentionRows(head_dim, element_bytes) / AttentionHeads(head_dim, group, element_bytes);
}

}  // namespace eventide
