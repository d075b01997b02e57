// Causal attention over a paged KV cache, one task per attention item (ops/step_tables.h), KV head
// and split of its query heads. Takes the raw output of the qkv linear: QK-norm, rope and the
// append of new keys and values to the cache happen here, where they cost no hop.
//
// Keys and values of earlier steps stream in ahead of every wait. Those of this step are normed and rotated
// by every task that sees them (a few KiB of L2 reads), straight into the page (those of a single query token with its
// queries); the one whose queries they belong to also stores them in the cache. Groups of threads (warps) take a chunk each
// and wait for nobody until chunks are merged, of one wave or of several.
//
// Rows of many query tokens (AttentionItem::appended): their keys and values are in the cache before attention
// begins (ops/append_kv.h), all pages come by the input lane, and tiles are as large as the threads' registers allow:
// a wave is one chunk, which all groups work on, each on rows of its own, and merge into sums that they keep.
//
// Reduction tree: KV pages and chunks are cut at absolute positions (ops/chunks.h); a chunk starts
// from nothing, pages join it left to right, chunks are merged left to right. A part of a tile
// leaves one partial per chunk (the first part: its running merge), and the last part to arrive
// goes on with the same merge. So the bits do not depend on parts, tiles or on how a prompt was cut
// into steps.
//
// Block-sparse (AttentionParams::picked): the same over a shorter sequence, the picked blocks in their order;
// only rotations know where a token really stands.
//
// Cost: KV bytes of each item once; 4 * head_dim flops per query head and visible key.
#pragma once

#include "device/dispatch.h"
#include "device/layout.h"
#include "device/op.h"
#include "device/softmax.h"
#include "ops/attention_keys.h"
#include "ops/attention_pages.h"
#include "ops/attention_results.h"

namespace eventide {

struct PagedAttention {
  static constexpr OpInfo kInfo = {
      "paged_attention",
      12,
      {In("items"), In("row_start"), In("qkv"), InOut("cache"), In("q_norm"), In("k_norm"),
       In("rope"), InOut("partials"), InOut("merge"), Out("output"), In("picked"), In("table")},
      /*stream_floor=*/1,
      /*input_floor=*/0,
      /*constant_params=*/true,
      /*starts_early=*/true};
  using Params = AttentionParams;

  // Each KV page, as far as it is cached; pages of this step's tokens alone come without data. Tiles of many rows:
  // pages for their queries and sums.
  template <class T, class L>
  static EVT_FN void Stream(L& lane, const Task<Params>& t) {
    if (Appended(t)) {
      EVT_ROLLED
      for (i32 i = 0; i < 1 + L::template LongAttention<T>::kPages; ++i) lane.Blank();
      return;
    }
    constexpr i32 kBytes = static_cast<i32>(sizeof(T));
    const Params& p = t.params();
    const AttentionCut cut(p, kBytes);
    const AttentionTask task(t, kBytes);
    using Tile = typename L::template AttentionTile<T>;
    const i32 wave = AttentionTask::Wave(L::kGroups, Tile::Units(task.rows, p.head_dim));
    const PieceBlocks<T> blocks(t, task, cut.page_tokens);
    AttentionPages pages(task, cut.page_tokens, wave);
    i32 page = -1;
    typename PieceBlocks<T>::Ids ids = {};
    EVT_ROLLED
    while (page < pages.kEnd) {
      const i32 next = pages.Next();
      if (page >= 0) {
        const CopyShape shape = task.Shape(p, cut.page_tokens, page, sizeof(T));
        if (shape.pieces == 0) {
          lane.Blank();
        } else {
          lane.Copy(shape, [&](i32 i, i32 value) { return blocks.Source(ids, page, i, value); });
        }
      }
      ids = blocks.Look(next);  // on its way until that page's first copy
      page = next;
    }
  }
  template <class T, class L>
  static EVT_FN void Input(L& lane, const Task<Params>& t) {
    if (!Appended(t)) return;
    lane.ByOne([&](auto& one) {
      constexpr i32 kBytes = static_cast<i32>(sizeof(T));
      const AttentionCut cut(t.params(), kBytes);
      const AttentionTask task(t, kBytes);
      const PieceBlocks<T> blocks(t, task, cut.page_tokens);
      auto ids = blocks.Look(task.low);
      EVT_ROLLED
      for (i32 page = task.low; page < task.high; page += cut.page_tokens) {
        one.Copy(task.Shape(t.params(), cut.page_tokens, page, sizeof(T)),
                 [&](i32 i, i32 value) { return blocks.Source(ids, page, i, value); });
        ids = blocks.Look(page + cut.page_tokens);
      }
    });
  }

  // Where the task is in the step's tables, which are two trips to memory away.
  template <class T, class W>
  static EVT_FN void Prepare(W& w, const Task<Params>& t) {
    const AttentionSetup setup = AttentionRoom<T>::Lay(t, AttentionTask(t, static_cast<i32>(sizeof(T))));
    if (w.Leader()) SetupOf(w) = setup;
  }

  template <class T, class W>
  static EVT_FN void Compute(W& w, const Task<Params>& t) {
    if constexpr (!Follows<W>) Prepare<T>(w, t);
    // The task and its memory are described in Scratch: registers are for sums.
    const Params& p = t.params();
    const AttentionCut cut(p, static_cast<i32>(sizeof(T)));
    AttentionRoom<T>& room = AttentionRoom<T>::Of(w);
    const AttentionTask& task = room.task;
    using Long = typename W::template LongAttention<T>;
    using Results = AttentionResults<T>;
    w.Sync();  // the task before may still be reading Scratch
    if (w.Leader()) room.Set(SetupOf(w));
    if (!w.AwaitReady()) return;  // which is a Sync, too
    const bool many = Opaque(task.item.appended) != 0;
    if (many) {
      EVT_ROLLED
      for (i32 i = 0; i < 1 + Long::kPages; ++i) {
        auto memory = w.Take(kLaneStream);
        if (w.Leader()) room.AddPage(i, w.Own(memory, CopyShape::Of(0, 0)), Long::Rows(p.head_dim) / 2);
      }
      w.Sync();
    }
    Load<T>(w, t, room);
    typename W::template AttentionTile<T> tile(w);
    Long merged;
    if (many) merged.Start(tile, p.head_dim, room.long_memory);
    // Opaque, here and below: neither a loop of its own for each kind, nor registers for what is rarely asked for.
    const u32 lane = static_cast<u32>(Opaque(many ? kLaneInput : kLaneStream));
    const i32 units = many ? W::kGroups : tile.Units(task.rows, p.head_dim);
    typename Results::Turn turn;
    EVT_ROLLED
    for (i32 first = task.item.chunk_first; first < task.item.chunk_end;
         first += AttentionTask::Wave(W::kGroups, Opaque(units))) {
      const i32 wave = AttentionTask::Wave(W::kGroups, Opaque(units));
      const i32 chunks = Min(wave, task.item.chunk_end - first);
      const i32 slot = tile.Start(units, task.rows, p.head_dim);
      const auto pages = [&](i32 of) { return task.Pages(cut.page_tokens, first + of); };
      const i32 taken = tile.ForEachPage(slot, chunks, pages, [&](i32 number, i32 ahead) {
        const i32 page = task.FirstOf(first + slot) + number * cut.page_tokens;
        auto memory = w.Peek(lane, ahead);
        const CopyShape shape = task.Shape(p, cut.page_tokens, page, sizeof(T));
        const i32 end = Min(page + cut.page_tokens, task.high);
        bool one_piece = W::kPagesAreCopies;
        // Some of its tokens are not in the cache, or it has values behind the last one.
        if ((end > Max(page, task.cached)) | (W::kPagesAreCopies & (end < page + cut.page_tokens))) {
          T* keys = reinterpret_cast<T*>(w.Own(memory, shape));
          FreshTokens<T, W>(tile, t, room, page, end, keys, keys + shape.run_bytes / sizeof(T));
          one_piece = true;
        }
        Page<T>(t, room, tile, memory, shape, page, end, one_piece);
        w.Release(lane, ahead, Opaque(units), tile.First());
      });
      w.Advance(lane, taken);
      if (Opaque(static_cast<i32>(lane)) == kLaneInput) {
        merged.Merge(tile, task.rows, p.head_dim, room.long_memory);
      } else {
        Results::Leave(w, t, room, tile, first, chunks, wave, slot, turn);
      }
    }
    if (Opaque(static_cast<i32>(lane)) == kLaneInput) {
      w.Sync();  // queries make room for outputs
      merged.Output(tile, room.queries(), task.rows, p.head_dim, room.long_memory,
                    [&](i32 row, i32 d, const Neighbours<T, 8>& out) { out.To(Results::OutputOf(t, task, row, d)); });
      EVT_ROLLED
      for (i32 i = 0; i < 1 + Long::kPages; ++i) w.Drop(kLaneStream);
    }
    if (Opaque(task.item.parts) > 1) Results::MergeParts(w, t, room);
  }

 private:
  static EVT_FN bool Appended(const Task<Params>& t) {
    return t.Operand<const AttentionItem>(AttentionOperand::kItems)[t.at.at[0]].appended != 0;
  }

  template <class W>
  static EVT_FN AttentionSetup& SetupOf(W& w) {
    static_assert(sizeof(AttentionSetup) <= kPreparedBytes, "prepared");
    return *reinterpret_cast<AttentionSetup*>(w.Prepared());
  }

  // Of a decode row, by threads behind those that queries mostly need: its value, and what a norm's barrier would keep far
  // away.
  template <class T, class W>
  static EVT_FN void LoadFresh(W& w, const Task<Params>& t, AttentionRoom<T>& room) {
    const Params& p = t.params();
    const AttentionTask& task = room.task;
    const i32 position = task.item.context + task.item.q_first;
    constexpr i32 kFirst = 128;
    w.Parallel(room.fresh ? kFirst + p.head_dim / 4 : 0, [&](i32 i) {
      if (i < kFirst) return;
      const i32 at = (i - kFirst) * 4;
      const Four<float> value = Four<float>::Of(task.Raw(t, task.item.q_first) + (p.group + 1) * p.head_dim + at);
      if (p.qk_norm) {
        const Four<float> angles = Four<float>::Of(Angles(t, task, position) + at);
        const Four<T> query_gain = Four<T>::Of(t.Operand<const T>(AttentionOperand::kQueryNorm) + at);
        const Four<T> key_gain = Four<T>::Of(t.Operand<const T>(AttentionOperand::kKeyNorm) + at);
        angles.To(room.angles(p.head_dim) + at);
        query_gain.To(room.gains(p.head_dim) + at);
        key_gain.To(room.gains(p.head_dim) + p.head_dim + at);
      }
      Four<T> out;
      for (i32 j = 0; j < 4; ++j) out.at[j] = Storage<T>::From(value.at[j]);
      out.To(room.fresh_token(p.head_dim) + p.head_dim + KvColumn(QuerySwizzle<W>(p.head_dim), position, at));
      if (at == 0) room.fresh_block = task.Table(t)[position / p.block_size];
    });
  }

  // Queries, normed, rotated, scaled and rounded to storage; of a decode row its key, the row behind them, and value, too.
  template <class T, class W>
  static EVT_FN void Load(W& w, const Task<Params>& t, AttentionRoom<T>& room) {
    const Params& p = t.params();
    const AttentionTask& task = room.task;
    const i32 half = p.head_dim / 2;
    const AttentionCut cut(p, static_cast<i32>(sizeof(T)));
    const i32 heads = cut.Heads(p, t.at.at[2]);
    const i32 swizzle = QuerySwizzle<W>(p.head_dim);
    const i32 position = task.item.context + task.item.q_first;  // of the first query token
    const i32 rows = task.rows + (room.fresh ? 1 : 0);
    LoadFresh<T>(w, t, room);
    const auto raw = [&](i32 row) {
      const bool key = row == task.rows;
      return task.Raw(t, task.item.q_first + (key ? 0 : row / heads)) +
             (key ? p.group : t.at.at[2] * cut.split_heads + row % heads) * p.head_dim;
    };
    const bool kept = p.qk_norm && task.item.appended == 0;  // many rows are read twice
    if (p.qk_norm) {
      w.RowSums(
          rows, p.head_dim,
          [&](i32 row, i32 d) {
            const float x = raw(row)[d];
            if (kept) room.running()[row * p.head_dim + d] = x;  // which nothing is in yet
            return Multiply(x, x);
          },
          [&](i32 row, float sum) { room.inverse_rms[row] = InverseRms(sum, p.head_dim, p.epsilon); });
      w.Sync();
    }
    const float query_scale = Multiply(p.scale, 1.4426950408889634f);  // exponents are of 2
    const i32 fours = half / 4;
    const QueryRows<T> queries = room.queries();
    w.Parallel(rows * fours, [&](i32 i) {
      const i32 row = i / fours, at = i % fours * 4;
      const bool key = row == task.rows;
      const float* x = (kept ? room.running() + row * p.head_dim : raw(row)) + at;
      // Behind a barrier they are near; without one they come with the queries.
      const bool near = p.qk_norm && room.fresh;
      const float* angles = near ? room.angles(p.head_dim) : Angles(t, task, position + (key ? 0 : row / heads));
      const T* gain = near ? room.gains(p.head_dim) + (key ? p.head_dim : 0)
                           : t.Operand<const T>(AttentionOperand::kQueryNorm);
      const Four<float> low = Four<float>::Of(x), high = Four<float>::Of(x + half);
      const Four<float> angle[2] = {Four<float>::Of(angles + at * 2), Four<float>::Of(angles + at * 2 + 4)};
      const float scale = key ? 1.0f : query_scale;
      Four<T> out_low, out_high;
      for (i32 j = 0; j < 4; ++j) {
        RopePair pair{low.at[j], high.at[j]};
        if (p.qk_norm) pair = Gain(pair, room.inverse_rms[row], gain, at + j, half);
        pair = Rotate(pair, &angle[j / 2].at[j % 2 * 2]);
        out_low.at[j] = Storage<T>::From(Multiply(pair.low, scale));
        out_high.at[j] = Storage<T>::From(Multiply(pair.high, scale));
      }
      T* q = key ? room.fresh_token(p.head_dim) : queries.At(row, p.head_dim);
      const i32 place = key ? position : row;
      out_low.To(q + KvColumn(swizzle, place, at));
      out_high.To(q + KvColumn(swizzle, place, at + half));
    });
    w.Sync();
  }

  // Keys and values of one page, at positions [page, end), join the chunk of the group of threads that calls this.
  template <class T, class Tile, class Memory>
  static EVT_FN void Page(const Task<Params>& t, AttentionRoom<T>& room, Tile& tile, const Memory& memory,
                          const CopyShape& shape, i32 page, i32 end, bool one_piece) {
    const Params& p = t.params();
    const AttentionTask& task = room.task;
    const AttentionCut cut(p, static_cast<i32>(sizeof(T)));
    const i32 heads = cut.Heads(p, t.at.at[2]);
    const i32 shift = one_piece ? kOnePiece : LowestBit(static_cast<u32>(Min(p.block_size, cut.page_tokens)));
    using View = KvView<T, Memory>;
    const i32 first = task.item.context + task.item.q_first - page;
    tile.Page(
        room.queries(), View{memory, 0, shift, p.head_dim, 0},
        View{memory, one_piece ? 0 : shape.pieces, shift, p.head_dim, shape.run_bytes},
        end - page, cut.page_tokens, task.rows, p.head_dim,
        [&](i32 row) { return p.window > 0 ? Max(0, first + row / heads - p.window + 1) : 0; },
        [&](i32 row) { return Min(end - page, first + row / heads + 1); });
  }
};

}  // namespace eventide
