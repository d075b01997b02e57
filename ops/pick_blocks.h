// Block-sparse attention: which KV blocks one row of one KV head attends to, decided on the device.
//
// A full block's score is a bound of what any of its keys can give (Quest, Tang et al. 2024): the sum over
// the group's query heads and over columns of max(q min, q max), where min and max are of the block's keys
// (ops/block_bounds.h). The `blocks` best stay, ties to the lower position; the tail (the tokens behind the
// last full block, where new keys go) always does. Rows of several tokens attend to everything, since their
// tokens would pick different blocks.
//
// What is picked becomes a shorter sequence: a table of the picked blocks in their order, then the tail.
// Attention over that table is attention over what was picked, with chunks cut at positions in it; and where
// everything is picked it is the row's own table, so that the bits are those of dense attention.
#pragma once

#include "device/dtype.h"
#include "device/op.h"
#include "ops/rope.h"
#include "ops/scan.h"
#include "ops/select.h"

namespace eventide {

struct PickBlocks {
  static constexpr OpInfo kInfo = {
      "pick_blocks",
      7,
      {In("row_start"), In("qkv"), In("bounds"), In("q_norm"), In("rope"), Out("picked"),
       Out("table")}};
  enum : int {
    kRowStart,
    kQkv,     // as attention reads it
    kBounds,  // T[block][kv_head][min, max][head_dim]
    kQueryNorm,
    kRope,
    kPicked,  // i32[row]: tokens of the shorter sequence that have KV, the same for all KV heads
    kTable,   // u32[row][kv_head][table_stride]
  };

  static constexpr i32 kMaxBlocks = 1024;          // of a sequence
  static constexpr i32 kMaxQueryElements = 2000;  // of a KV head's query heads

  struct Params {
    i32 head_dim, kv_heads, group;
    i32 qkv_stride;
    i32 block_size;
    i32 blocks;        // to pick of the full ones
    i32 table_stride;  // blocks of the longest sequence
    i32 qk_norm;
    float epsilon;
  };

  template <class T, class W>
  static EVT_FN void Compute(W& w, const Task<Params>& t) {
    const Params& p = t.params();
    Memory& m = *reinterpret_cast<Memory*>(w.Scratch());
    const i32 r = t.at.at[0], head = t.at.at[1];
    const i32* row_start = t.Operand<const i32>(kRowStart);
    const i32 length = row_start[r + 1] - row_start[r];
    const u32 slot = t.step.Rows()[r].slot;
    const i32 context = static_cast<i32>(t.step.Slots()[slot].context_length);
    const i32 full = context / p.block_size;
    const bool chooses = length == 1 && full > p.blocks;
    const i32 kept = chooses ? p.blocks : full;
    const u32* blocks = t.step.BlockTable(slot);
    u32* table = t.Operand<u32>(kTable) + (static_cast<i64>(r) * p.kv_heads + head) * p.table_stride;
    if (chooses) {
      Score<T>(w, t, m, row_start[r], context, full, blocks);
      w.Parallel(full, [&](i32 b) {
        i32 rank = 0;
        for (i32 other = 0; other < full; ++other) {
          rank += m.score[other] + (other < b ? 1u : 0u) > m.score[b] ? 1 : 0;
        }
        m.kept[b] = rank < kept ? 1 : 0;
      });
      ScanExclusive(w, m.kept, 1, kMaxBlocks, full, &m.total);
      w.Parallel(full, [&](i32 b) {
        const i32 next = b + 1 < full ? m.kept[b + 1] : m.total;
        if (next > m.kept[b]) table[m.kept[b]] = blocks[b];
      });
    } else {
      w.Parallel(full, [&](i32 b) { table[b] = blocks[b]; });
    }
    const i32 tail = CeilDiv(context + length, p.block_size) - full;
    w.Parallel(tail, [&](i32 i) { table[kept + i] = blocks[full + i]; });
    if (head == 0 && w.Leader()) {
      t.Operand<i32>(kPicked)[r] = context - (full - kept) * p.block_size;
    }
  }

 private:
  struct Memory {
    u32 score[kMaxBlocks];  // OrderKey
    i32 kept[kMaxBlocks];
    float query[kMaxQueryElements];
    float inverse_rms[kMaxAttentionRows];
    i32 total;
  };
  static_assert(sizeof(Memory) <= kScratchBytes);

  template <class T, class W>
  static EVT_FN void Score(W& w, const Task<Params>& t, Memory& m, i32 token, i32 context, i32 full,
                           const u32* blocks) {
    const Params& p = t.params();
    const i32 half = p.head_dim / 2, head = t.at.at[1];
    const float* raw = t.Operand<const float>(kQkv) +
                       (static_cast<i64>(token) * p.kv_heads + head) * p.qkv_stride;
    const T* gain = t.Operand<const T>(kQueryNorm);
    const float* angle = t.Operand<const float>(kRope) + static_cast<i64>(context) * p.head_dim;
    if (p.qk_norm) {
      w.RowSums(
          p.group, p.head_dim,
          [&](i32 g, i32 d) { return Multiply(raw[g * p.head_dim + d], raw[g * p.head_dim + d]); },
          [&](i32 g, float sum) { m.inverse_rms[g] = InverseRms(sum, p.head_dim, p.epsilon); });
      w.Sync();
    }
    w.Parallel(p.group * half, [&](i32 i) {
      const i32 g = i / half, d = i % half;
      const float* x = raw + g * p.head_dim;
      RopePair pair{x[d], x[d + half]};
      if (p.qk_norm) {
        pair = {Multiply(Multiply(pair.low, m.inverse_rms[g]), ToFloat(gain[d])),
                Multiply(Multiply(pair.high, m.inverse_rms[g]), ToFloat(gain[d + half]))};
      }
      pair = Rotate(pair, angle + 2 * d);
      m.query[g * p.head_dim + d] = pair.low;
      m.query[g * p.head_dim + d + half] = pair.high;
    });
    w.Sync();
    const T* bounds = t.Operand<const T>(kBounds);
    w.RowSums(
        full, p.head_dim,
        [&](i32 b, i32 d) {
          const T* of = bounds + (static_cast<i64>(blocks[b]) * p.kv_heads + head) * 2 * p.head_dim;
          const float low = ToFloat(of[d]), high = ToFloat(of[p.head_dim + d]);
          float sum = 0.0f;
          EVT_ROLLED
          for (i32 g = 0; g < p.group; ++g) {
            const float q = m.query[g * p.head_dim + d];
            sum = Add(sum, Max(Multiply(q, low), Multiply(q, high)));
          }
          return sum;
        },
        [&](i32 b, float sum) { m.score[b] = OrderKey(sum); });
    w.Sync();
  }
};

}  // namespace eventide
