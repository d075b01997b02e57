// The KV pages of an attention task: their order, and where in the cache they come from.
#pragma once

#include "device/layout.h"
#include "device/pages.h"
#include "ops/attention_task.h"

namespace eventide {

// The KV pages of a task in the order in which they are consumed: of each wave of chunks, which groups of
// threads work on at the same time, the first page of each, then the second of each, and so on.
class AttentionPages {
 public:
  static constexpr i32 kEnd = 1 << 30;

  EVT_FN AttentionPages(const AttentionTask& task, i32 page_tokens, i32 wave)
      : low_(task.low),
        high_(task.high),
        chunk_end_(task.item.chunk_end),
        page_tokens_(page_tokens),
        wave_(wave),
        first_(task.item.chunk_first),
        chunk_(first_),
        start_(ChunkStart(first_)) {}

  // The next page's first position; kEnd behind the last.
  EVT_FN i32 Next() {
    EVT_ROLLED
    for (;;) {
      if (chunk_ >= Min(first_ + wave_, chunk_end_)) {
        if (more_) {
          chunk_ = first_;
        } else {
          if (chunk_ >= chunk_end_) return kEnd;
          first_ = chunk_;
          offset_ = -page_tokens_;
        }
        offset_ += page_tokens_;
        start_ = ChunkStart(chunk_);
        more_ = false;
      }
      const i32 page = Max(start_, low_) + offset_;
      start_ = ChunkStart(++chunk_);
      const i32 limit = Min(start_, high_);
      more_ = more_ || page + page_tokens_ < limit;
      if (page < limit) return page;
    }
  }

 private:
  const i32 low_, high_, chunk_end_, page_tokens_, wave_;
  i32 first_, chunk_;
  i32 start_;          // of the chunk
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
        cached_(task.cached),
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

}  // namespace eventide
