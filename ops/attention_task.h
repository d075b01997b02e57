// One attention task's place in the step: which queries and positions it covers, and its memory.
#pragma once

#include "device/dtype.h"
#include "device/layout.h"
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
    kPicked,    // if `picked`: i32[row], tokens in front of this step's among the picked blocks
    kTable,     // if `picked`: u32[row][kv_head][picked], those blocks (ops/pick_blocks.h)
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
  i32 picked;      // > 0: rows attend to the blocks of their own tables; no window then
};

// What of a task follows from the parameters: constants, where those are.
struct AttentionCut {
  i32 page_tokens, splits, split_heads;
  EVT_FN AttentionCut(const AttentionParams& p, i32 element_bytes)
      : page_tokens(KvPageTokens(p.head_dim, element_bytes)),
        splits(AttentionSplits(p.head_dim, p.group, element_bytes)),
        split_heads(AttentionHeads(p.head_dim, p.group, element_bytes)) {}
  // Of the KV head's query heads, how many a split has.
  EVT_FN i32 Heads(const AttentionParams& p, i32 split) const {
    return splits == 1 ? p.group : Min(split_heads, p.group - split * split_heads);
  }
};

struct AttentionTask {
  AttentionItem item;
  u32 slot;
  i32 row_start;  // first token of the row
  i32 context;    // positions below it are in the cache, the others are this step's
  i32 rows;       // q_count * heads: row = token * heads + head
  i32 low, high;  // positions this item covers; low at the start of a page

  EVT_FN AttentionTask(const Task<AttentionParams>& t, i32 element_bytes) {
    const AttentionParams& p = t.params();
    const AttentionCut cut(p, element_bytes);
    item = t.Operand<const AttentionItem>(AttentionOperand::kItems)[t.at.at[0]];
    slot = t.step.Rows()[item.row].slot;
    row_start = t.Operand<const i32>(AttentionOperand::kRowStart)[item.row];
    context = static_cast<i32>(t.step.Slots()[slot].context_length);
    if (p.picked > 0) context = t.Operand<const i32>(AttentionOperand::kPicked)[item.row];
    rows = item.q_count * cut.Heads(p, t.at.at[2]);
    low = Max(Seen(p) / cut.page_tokens * cut.page_tokens, ChunkStart(item.chunk_first));
    high = Min(context + item.q_first + item.q_count, ChunkStart(item.chunk_end));
    if (item.chunk_first >= item.chunk_end) high = low;
  }

  // Where a token of the shorter sequence stands in the whole one.
  EVT_FN i32 Place(const Task<AttentionParams>& t, i32 position) const {
    if (t.params().picked == 0) return position;
    return position + static_cast<i32>(t.step.Slots()[slot].context_length) - context;
  }
  EVT_FN const u32* Table(const Task<AttentionParams>& t) const {
    const AttentionParams& p = t.params();
    if (p.picked == 0) return t.step.BlockTable(slot);
    return t.Operand<const u32>(AttentionOperand::kTable) +
           (static_cast<i64>(item.row) * p.kv_heads + t.at.at[1]) * p.picked;
  }

  // The first of the item's positions in a chunk, and how many KV pages it has there.
  EVT_FN i32 FirstOf(i32 chunk) const { return Max(ChunkStart(chunk), low); }
  EVT_FN i32 Pages(i32 page_tokens, i32 chunk) const {
    return CeilDiv(Max(0, Min(ChunkStart(chunk + 1), high) - FirstOf(chunk)), page_tokens);
  }
  // Chunks worked on at a time, where `groups` groups of threads take `units` each: as many as there are
  // groups for, and memory for results.
  EVT_FN i32 Wave(const AttentionParams& p, i32 groups, i32 units, i32 element_bytes) const {
    return Max(1, Min(groups / units, AttentionElements(element_bytes) / Max(1, rows * p.head_dim)));
  }

  // How a KV page is filled: a run of keys and a run of values, each of whole blocks of the cache, or of
  // parts where blocks are larger. No pieces: all of the page's tokens are this step's.
  EVT_FN CopyShape Shape(const AttentionParams& p, i32 page_tokens, i32 page,
                         u32 element_bytes) const {
    const i32 cached = Max(0, Min(context - page, page_tokens));
    const i32 piece = Min(p.block_size, page_tokens);
    const u32 token_bytes = static_cast<u32>(p.head_dim) * element_bytes;
    CopyShape shape;
    shape.pieces = CeilDiv(cached, piece);
    shape.bytes = static_cast<u32>(piece) * token_bytes;
    shape.last_bytes = static_cast<u32>(cached - (shape.pieces - 1) * piece) * token_bytes;
    shape.runs = 2;
    shape.run_bytes = static_cast<u32>(page_tokens) * token_bytes;
    return shape;
  }

  // The raw projections of the row's query token `at`, of the task's KV head.
  EVT_FN const float* Raw(const Task<AttentionParams>& t, i32 at) const {
    const AttentionParams& p = t.params();
    return t.Operand<const float>(AttentionOperand::kQkv) +
           (static_cast<i64>(row_start + at) * p.kv_heads + t.at.at[1]) * p.qkv_stride;
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

// The KV pages of a task in the order in which they are consumed: of each wave of chunks, which groups of
// threads work on at the same time, the first page of each, then the second of each, and so on.
class AttentionPages {
 public:
  EVT_FN AttentionPages(const AttentionTask& task, i32 page_tokens, i32 wave)
      : task_(task), page_tokens_(page_tokens), wave_(wave), chunk_(task.item.chunk_first), first_(chunk_) {}

  static constexpr i32 kEnd = 1 << 30;

  // The next page's first position; kEnd behind the last.
  EVT_FN i32 Next() {
    EVT_ROLLED
    for (;;) {
      const i32 end = Min(first_ + wave_, task_.item.chunk_end);
      if (chunk_ >= end) {
        if (!more_) {
          if (end >= task_.item.chunk_end) return kEnd;
          first_ = end;
          offset_ = -page_tokens_;
        }
        offset_ += page_tokens_;
        chunk_ = first_;
        more_ = false;
      }
      const i32 page = task_.FirstOf(chunk_) + offset_;
      const i32 limit = Min(ChunkStart(++chunk_), task_.high);
      more_ = more_ || page + page_tokens_ < limit;
      if (page < limit) return page;
    }
  }

 private:
  const AttentionTask& task_;
  const i32 page_tokens_, wave_;
  i32 chunk_, first_;
  i32 offset_ = 0;     // of this round's pages within their chunks
  bool more_ = false;  // the wave has a page in the next round
};

// Where in the cache the pieces of a task's pages lie. The table of blocks is a trip to the second-level cache
// away, so a page's blocks are looked up, all at once, before it is their turn.
template <class T>
class PieceBlocks {
 public:
  static constexpr i32 kAhead = 4;  // of a page; where blocks are small, the others are looked up one by one
  struct Ids {
    u32 at[kAhead];
  };

  EVT_FN PieceBlocks(const Task<AttentionParams>& t, const AttentionTask& task, i32 page_tokens)
      : layout_{t.params().block_size, t.params().kv_heads, t.params().head_dim},
        head_(t.Operand<const T>(AttentionOperand::kCache) + layout_.Index(0, 0, t.at.at[1], 0)),
        table_(task.Table(t)),
        cached_(task.context),
        shift_(LowestBit(static_cast<u32>(layout_.block_size))),
        piece_(Min(layout_.block_size, page_tokens)),
        piece_shift_(LowestBit(static_cast<u32>(piece_))),
        pieces_(CeilDiv(page_tokens, piece_)) {}

  EVT_FN Ids Look(i32 page) const {
    Ids ids;
    for (i32 i = 0; i < kAhead; ++i) {
      const i32 position = page + (i << piece_shift_);
      ids.at[i] = i < pieces_ && position < cached_ ? table_[position >> shift_] : 0;
    }
    return ids;
  }
  EVT_FN const T* Source(const Ids& ids, i32 page, i32 i, i32 value) const {
    const i32 position = page + (i << piece_shift_);
    u32 id = i == 0 ? ids.at[0] : i == 1 ? ids.at[1] : i == 2 ? ids.at[2] : ids.at[3];
    if (pieces_ > kAhead && i >= kAhead) id = table_[position >> shift_];
    // Pieces are whole blocks, unless blocks are larger than pages.
    const i32 slot = piece_ < layout_.block_size ? position & (layout_.block_size - 1) : 0;
    return head_ + layout_.Index(id, value, 0, slot);
  }

 private:
  const KvLayout layout_;
  const T* const head_;
  const u32* const table_;
  const i32 cached_, shift_, piece_, piece_shift_, pieces_;
};

// A task's memory in Scratch. Kept small: results of a wave of chunks, and what they are merged into.
template <class T>
struct AttentionRoom {
  static constexpr i32 kElements = AttentionElements(static_cast<i32>(sizeof(T)));
  // (chunk of a wave, row) pairs: most for the smallest heads.
  static constexpr i32 kStates = kElements / 8;

  AttentionTask task;
  alignas(16) T queries[kElements];      // [row][head_dim]
  float results[kElements];              // of a wave: [chunk][row][head_dim]
  float running[kElements];              // [row][head_dim]: all chunks so far
  SoftmaxState state[kStates];           // of results
  SoftmaxState running_state[2][kMaxAttentionRows];  // before and after a wave, in turn
  float inverse_rms[kMaxAttentionRows];

  template <class W>
  static EVT_FN AttentionRoom& Of(W& w) {
    static_assert(sizeof(AttentionRoom) <= kScratchBytes, "scratch");
    return *reinterpret_cast<AttentionRoom*>(w.Scratch());
  }
};

}  // namespace eventide
