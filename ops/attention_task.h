// One attention task's place in the step: which queries and positions it covers, and its memory.
#pragma once

#include "device/dtype.h"
#include "device/op.h"
#include "device/pages.h"
#include "device/softmax.h"
#include "ops/step_tables.h"

namespace eventide {

struct AttentionOperand {
  enum : int {
    kItems,
    kRowStart,
    kQkv,        // float[token][kv_head][qkv_stride]: query heads, key, value; raw
    kCache,      // device/layout.h, KvLayout
    kQueryNorm,  // head_dim gains, if qk_norm
    kKeyNorm,
    kRope,      // float[position][head_dim / 2][cos, sin]
    kPartials,  // float[slot][head][head_dim + 2]
    kMerge,     // u32[group][kv_head][split], zero between tiles
    kOutput,    // activations, K = all query heads * head_dim
  };
};

struct AttentionParams {
  i32 head_dim;  // a multiple of 8, at most 256
  i32 kv_heads, group;
  i32 qkv_stride;  // floats of one KV head in qkv
  i32 block_size;  // tokens of a KV block, a power of two
  i32 window;      // sliding window in tokens, itself included; 0: none
  float scale;     // of scores, 1 / sqrt(head_dim) as a rule
  float epsilon;   // of the QK-norm
  i32 qk_norm;     // 0: q_norm and k_norm are not read
};

struct CachedPieces {
  i32 count;
  i32 shift;  // of the tokens of one piece
  u32 bytes, last_bytes;
};

struct AttentionTask {
  AttentionItem item;
  u32 slot;
  i32 row_start;  // first token of the row
  i32 context;    // positions below it are in the cache, the others are this step's
  i32 page_tokens;
  i32 head_dim;
  i32 head_first, heads;  // of the KV head's query heads
  i32 rows;               // q_count * heads: row = token * heads + head
  i32 low, high;          // positions this item covers; low at the start of a page

  EVT_FN AttentionTask(const Task<AttentionParams>& t, i32 element_bytes) {
    const AttentionParams& p = t.params();
    item = t.Operand<const AttentionItem>(AttentionOperand::kItems)[t.at.at[0]];
    slot = t.step.Rows()[item.row].slot;
    row_start = t.Operand<const i32>(AttentionOperand::kRowStart)[item.row];
    context = static_cast<i32>(t.step.Slots()[slot].context_length);
    head_dim = p.head_dim;
    page_tokens = KvPageTokens(p.head_dim, element_bytes);
    const i32 per_split = AttentionHeads(p.head_dim, p.group);
    head_first = t.at.at[2] * per_split;
    heads = Min(per_split, p.group - head_first);
    rows = item.q_count * heads;
    low = Max(Seen(p) / page_tokens * page_tokens, ChunkStart(item.chunk_first));
    high = Min(context + item.q_first + item.q_count, ChunkStart(item.chunk_end));
    if (item.chunk_first >= item.chunk_end) high = low;
  }

  // Calls visit(first position) for the item's KV pages in order.
  template <class Visit>
  EVT_FN void ForEachPage(const Visit& visit) const {
    for (i32 page = low; page < high; page += page_tokens) visit(page);
  }

  // How the cached tokens of a KV page lie: whole blocks of the cache, or parts where blocks are larger.
  EVT_FN CachedPieces Pieces(const AttentionParams& p, i32 page, u32 element_bytes) const {
    const i32 cached = Max(0, Min(context - page, page_tokens));
    const i32 piece = Min(p.block_size, page_tokens);
    const u32 token_bytes = static_cast<u32>(p.head_dim) * element_bytes;
    CachedPieces pieces;
    pieces.count = CeilDiv(cached, piece);
    pieces.shift = LowestBit(static_cast<u32>(piece));
    pieces.bytes = static_cast<u32>(piece) * token_bytes;
    pieces.last_bytes = static_cast<u32>(cached - (pieces.count - 1) * piece) * token_bytes;
    return pieces;
  }

  // The raw projections of the row's query token `at`, of the task's KV head.
  EVT_FN const float* Raw(const Task<AttentionParams>& t, i32 at) const {
    const AttentionParams& p = t.params();
    return t.Operand<const float>(AttentionOperand::kQkv) +
           (static_cast<i64>(row_start + at) * p.kv_heads + t.at.at[1]) * p.qkv_stride;
  }
  // Query head of a row, among all.
  EVT_FN i32 Head(const Task<AttentionParams>& t, i32 row) const {
    return t.at.at[1] * t.params().group + head_first + row % heads;
  }

  // Partials of the whole tile: one of its first part, one of each chunk behind that. The parts of
  // a tile are neighbours in the table.
  EVT_FN i32 Orders(const Task<AttentionParams>& t) const {
    const AttentionItem* first =
        t.Operand<const AttentionItem>(AttentionOperand::kItems) + t.at.at[0] - item.part;
    return 1 + ChunkOf(context + item.q_first + item.q_count - 1) + 1 - first->chunk_end;
  }

 private:
  // The first position that any of the item's queries sees.
  EVT_FN i32 Seen(const AttentionParams& p) const {
    return p.window > 0 ? Max(0, context + item.q_first - p.window + 1) : 0;
  }
};

// A task's memory: pages of the input lane, and arrays in Scratch.
template <class T>
struct AttentionRoom {
  static constexpr i32 kPages = 3;
  static constexpr u32 kRoomBytes = 64;
  // (chunk of a wave, row) pairs: their sums share a page, so there are most for the smallest heads.
  static constexpr i32 kStates = kPageBytes / 4 / 8;

  T* queries;        // [row, rounded up to 16][head_dim]
  float* results;    // of a wave: [chunk][row][head_dim]
  float* running;    // [row][head_dim]: all chunks so far
  SoftmaxState *state, *running_state;  // of results, of running
  SoftmaxMerge* merge;                  // how results join running
  float* inverse_rms;
  AttentionTask* task;

  // Where the room itself lies: at the start of Scratch.
  template <class W>
  static EVT_FN AttentionRoom* In(W& w) {
    return reinterpret_cast<AttentionRoom*>(w.Scratch());
  }

  // Followed by a barrier.
  template <class W>
  EVT_FN void Take(W& w, const Task<AttentionParams>& t) {
    T* const first = Blank<T>(w);
    float* const second = Blank<float>(w);
    float* const third = Blank<float>(w);
    if (w.Leader()) {
      queries = first;
      results = second;
      running = third;
      task = reinterpret_cast<AttentionTask*>(w.Scratch() + kRoomBytes);
      state = reinterpret_cast<SoftmaxState*>(task + 1);
      merge = reinterpret_cast<SoftmaxMerge*>(state + kStates);
      running_state = reinterpret_cast<SoftmaxState*>(merge + kStates);
      inverse_rms = reinterpret_cast<float*>(running_state + kMaxAttentionRows);
      *task = AttentionTask(t, static_cast<i32>(sizeof(T)));
    }
    w.Sync();
    static_assert(sizeof(AttentionRoom) <= kRoomBytes, "room");
    static_assert(kRoomBytes + sizeof(AttentionTask) +
                          kStates * (sizeof(SoftmaxState) + sizeof(SoftmaxMerge)) +
                          kMaxAttentionRows * (sizeof(SoftmaxState) + sizeof(float)) <=
                      kScratchBytes,
                  "scratch");
  }
  template <class W>
  EVT_FN void Drop(W& w) {
    for (i32 i = 0; i < kPages; ++i) w.Drop(kLaneInput);
  }

 private:
  // A page that came without data is Compute's to fill.
  template <class U, class W>
  static EVT_FN U* Blank(W& w) {
    return reinterpret_cast<U*>(const_cast<u8*>(w.Take(kLaneInput).Piece(0)));
  }
};

}  // namespace eventide
