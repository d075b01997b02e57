// Causal attention over a paged KV cache, one task per attention item (ops/step_tables.h), KV head
// and split of its query heads. Takes the raw output of the qkv linear: QK-norm, rope and the
// append of new keys and values to the cache happen here, where they cost no hop.
//
// Keys of earlier steps stream in ahead of every wait. Those of this step are normed and rotated by
// every task that sees them (a few KiB of L2 reads), straight into the page; the one whose queries they
// belong to also stores them in the cache.
//
// Reduction tree: KV pages and chunks are cut at absolute positions (ops/chunks.h); a chunk starts
// from nothing, pages join it left to right, chunks are merged left to right. A part of a tile
// leaves one partial per chunk (the first part: its running merge), and the last part to arrive
// goes on with the same merge. So the bits do not depend on parts, tiles or on how a prompt was cut
// into steps.
//
// Cost: KV bytes of each item once; 4 * head_dim flops per query head and visible key.
#pragma once

#include "device/op.h"
#include "ops/attention_task.h"
#include "device/layout.h"
#include "ops/rope.h"
#include "device/softmax.h"

namespace eventide {

struct PagedAttention {
  static constexpr OpInfo kInfo = {
      "paged_attention",
      10,
      {In("items"), In("row_start"), In("qkv"), InOut("cache"), In("q_norm"), In("k_norm"),
       In("rope"), InOut("partials"), InOut("merge"), Out("output")},
      /*stream_floor=*/2,
      /*input_floor=*/3};
  using Params = AttentionParams;

  // Keys and values of each KV page, as far as they are cached; pages of this step's tokens alone come
  // without data.
  template <class T, class L>
  static EVT_FN void Stream(L& lane, const Task<Params>& t) {
    const Params& p = t.params();
    const AttentionTask task(t, static_cast<i32>(sizeof(T)));
    const KvLayout layout{p.block_size, p.kv_heads, p.head_dim};
    const T* cache = t.Operand<const T>(AttentionOperand::kCache);
    const u32* table = t.step.BlockTable(task.slot);
    task.ForEachPage([&](i32 page) {
      const CachedPieces pieces = task.Pieces(p, page, sizeof(T));
      for (i32 value = 0; value < 2; ++value) {
        if (pieces.count == 0) {
          lane.Blank();
          continue;
        }
        lane.Copy(
            pieces.count, pieces.bytes,
            [&](i32 i) {
              const i32 position = page + (i << pieces.shift);
              return cache + layout.Index(table[position / p.block_size], value, t.at.at[1],
                                          position % p.block_size);
            },
            pieces.last_bytes);
      }
    });
  }

  template <class T, class L>
  static EVT_FN void Input(L& lane, const Task<Params>&) {
    for (i32 i = 0; i < AttentionRoom<T>::kPages; ++i) lane.Blank();
  }

  template <class T, class W>
  static EVT_FN void Compute(W& w, const Task<Params>& t) {
    // The task and its memory are described in Scratch: registers are for sums.
    AttentionRoom<T>& room = *AttentionRoom<T>::In(w);
    room.Take(w, t);
    const AttentionTask& task = *room.task;
    LoadQueries<T>(w, t, task, room);
    typename W::template AttentionTile<T> tile(w);
    const i32 elements = task.rows * task.head_dim;
    // Chunks that are worked on at a time: as many as there are warps for, and memory for results.
    const i32 wave = Max(1, Min(W::kGroups / tile.Units(task.rows, task.head_dim), Wave(task)));
    for (i32 first = task.item.chunk_first; first < task.item.chunk_end; first += wave) {
      const i32 chunks = Min(wave, task.item.chunk_end - first);
      for (i32 slot = 0; slot < chunks; ++slot) {
        const i32 chunk = first + slot;
        const bool mine = tile.Start(slot, task.rows, task.head_dim);
        const i32 end = Min(ChunkStart(chunk + 1), task.high);
        for (i32 page = Max(ChunkStart(chunk), task.low); page < end; page += task.page_tokens) {
          Page<T>(w, t, task, room, tile, page, mine);
        }
        if (Opaque(mine)) {
          tile.Store(room.results + slot * elements, room.state + slot * task.rows, task.rows,
                     task.head_dim);
        }
      }
      w.Sync();
      if (Opaque(task.item.part) == 0) {
        MergeWave(w, task, room, chunks, first == task.item.chunk_first);
        continue;
      }
      for (i32 slot = 0; slot < chunks; ++slot) {
        const i32 order = task.item.first_order + first + slot - task.item.chunk_first;
        StorePartial(w, t, task, order, room.results + slot * elements,
                     room.state + slot * task.rows);
      }
      w.Sync();
    }
    bool complete = true;
    if (task.item.parts > 1) {
      if (task.item.part == 0) StorePartial(w, t, task, 0, room.running, room.running_state);
      complete = MergeParts<T>(w, t, task, room);
    }
    if (Opaque(complete)) StoreOutput<T>(w, t, task, room.running, room.running_state);
    w.Sync();
    room.Drop(w);
  }

 private:
  // Chunks whose results fit a page together.
  static EVT_FN i32 Wave(const AttentionTask& task) {
    return static_cast<i32>(kPageBytes / 4) / Max(1, task.rows * task.head_dim);
  }

  template <class W>
  static EVT_FN i32 Swizzle(const Params& p) {
    return W::kSwizzledKv ? KvSwizzle(p.head_dim) : 0;
  }

  // Queries, normed, rotated, scaled and rounded to storage.
  template <class T, class W>
  static EVT_FN void LoadQueries(W& w, const Task<Params>& t, const AttentionTask& task,
                                 AttentionRoom<T>& room) {
    const Params& p = t.params();
    const i32 half = p.head_dim / 2;
    const T* gain = t.Operand<const T>(AttentionOperand::kQueryNorm);
    const float* rope = t.Operand<const float>(AttentionOperand::kRope);
    const auto raw = [&](i32 row) {
      return task.Raw(t, task.item.q_first + row / task.heads) +
             (task.head_first + row % task.heads) * p.head_dim;
    };
    if (p.qk_norm) Norms(w, p, task.rows, raw, room.inverse_rms);
    const float scale = Multiply(p.scale, 1.4426950408889634f);  // exponents are of 2
    const i32 swizzle = Swizzle<W>(p);
    w.Parallel(task.rows * half, [&](i32 i) {
      const i32 row = i / half, d = i % half;
      const i32 position = task.context + task.item.q_first + row / task.heads;
      const float* x = raw(row);
      RopePair pair{x[d], x[d + half]};
      if (p.qk_norm) pair = Gain(pair, room.inverse_rms[row], gain, d, half);
      pair = Rotate(pair, rope + (static_cast<i64>(position) * half + d) * 2);
      T* q = room.queries + row * p.head_dim;
      q[KvColumn(swizzle, row, d)] = Storage<T>::From(Multiply(pair.low, scale));
      q[KvColumn(swizzle, row, d + half)] = Storage<T>::From(Multiply(pair.high, scale));
    });
    // Rows that only fill a block of 16 up count for nothing, but must be numbers.
    // Tensor cores read rows of 2-byte elements 16 at a time. Of float32, which they do not take, rows
    // rounded up need not fit the page.
    const i32 padded = sizeof(T) == 2 ? RoundUp(task.rows, 16) : task.rows;
    w.Parallel((padded - task.rows) * p.head_dim, [&](i32 i) {
      room.queries[task.rows * p.head_dim + i] = Storage<T>::From(0.0f);
    });
    w.Sync();
  }

  // 1 / rms of each of n heads of head_dim floats; followed by a barrier.
  template <class W, class Raw>
  static EVT_FN void Norms(W& w, const Params& p, i32 n, const Raw& raw, float* inverse_rms) {
    w.RowSums(
        n, p.head_dim,
        [&](i32 row, i32 d) {
          const float x = raw(row)[d];
          return Multiply(x, x);
        },
        [&](i32 row, float sum) { inverse_rms[row] = InverseRms(sum, p.head_dim, p.epsilon); });
    w.Sync();
  }

  template <class T>
  static EVT_FN RopePair Gain(RopePair x, float inverse_rms, const T* gain, i32 d, i32 half) {
    return {Multiply(Multiply(x.low, inverse_rms), ToFloat(gain[d])),
            Multiply(Multiply(x.high, inverse_rms), ToFloat(gain[d + half]))};
  }

  // Keys and values of one page join the chunk of the groups that work on it.
  template <class T, class W, class Tile>
  static EVT_FN void Page(W& w, const Task<Params>& t, const AttentionTask& task,
                          AttentionRoom<T>& room, Tile& tile, i32 page, bool mine) {
    const CachedPieces pieces = task.Pieces(t.params(), page, sizeof(T));
    auto keys = w.Take(kLaneStream);
    auto values = w.Take(kLaneStream);
    const i32 end = Min(page + task.page_tokens, task.high);
    i32 shift = pieces.count == 0 ? kOnePiece : pieces.shift;
    if (end > Max(page, task.context)) {
      T* k = reinterpret_cast<T*>(w.Own(keys, pieces.count, pieces.bytes, pieces.last_bytes));
      T* v = reinterpret_cast<T*>(w.Own(values, pieces.count, pieces.bytes, pieces.last_bytes));
      shift = kOnePiece;
      FreshTokens<T>(w, t, task, room, page, end, k, v);
    }
    if (Opaque(mine)) {
      const i32 first = task.context + task.item.q_first - page;
      const i32 window = t.params().window;
      using View = KvView<T, decltype(keys)>;
      tile.Page(
          room.queries, View{keys, shift, task.head_dim}, View{values, shift, task.head_dim},
          end - page, task.rows, task.head_dim,
          [&](i32 row) { return window > 0 ? Max(0, first + row / task.heads - window + 1) : 0; },
          [&](i32 row) { return Min(end - page, first + row / task.heads + 1); });
    }
    w.Drop(kLaneStream);
    w.Drop(kLaneStream);
  }

  // This step's keys and values among positions [page, end): into the page, and into the cache if they
  // belong to the item's queries. Values beyond `end` become zero: their weights are, but 0 * NaN is not.
  template <class T, class W>
  static EVT_FN void FreshTokens(W& w, const Task<Params>& t, const AttentionTask& task,
                                 AttentionRoom<T>& room, i32 page, i32 end, T* keys, T* values) {
    const Params& p = t.params();
    const i32 half = p.head_dim / 2;
    const i32 swizzle = Swizzle<W>(p);
    const T* gain = t.Operand<const T>(AttentionOperand::kKeyNorm);
    const float* rope = t.Operand<const float>(AttentionOperand::kRope);
    const KvLayout layout{p.block_size, p.kv_heads, p.head_dim};
    T* cache = t.Operand<T>(AttentionOperand::kCache);
    const u32* table = t.step.BlockTable(task.slot);
    const i32 first = Max(page, task.context);
    const auto raw = [&](i32 i) {
      return task.Raw(t, first + i - task.context) + p.group * p.head_dim;
    };
    if (p.qk_norm) Norms(w, p, end - first, raw, room.inverse_rms);
    const i32 owned = task.context + task.item.q_first;
    const bool appends = t.at.at[2] == 0;
    w.Parallel((end - first) * half, [&](i32 i) {
      const i32 token = i / half, d = i % half;
      const i32 position = first + token;
      const float* x = raw(token);
      RopePair key{x[d], x[d + half]};
      if (p.qk_norm) key = Gain(key, room.inverse_rms[token], gain, d, half);
      key = Rotate(key, rope + (static_cast<i64>(position) * half + d) * 2);
      const float* v = x + p.head_dim;
      const T k0 = Storage<T>::From(key.low), k1 = Storage<T>::From(key.high);
      const T v0 = Storage<T>::From(v[d]), v1 = Storage<T>::From(v[d + half]);
      const i32 c0 = KvColumn(swizzle, position, d), c1 = KvColumn(swizzle, position, d + half);
      const i32 at = (position - page) * p.head_dim;
      keys[at + c0] = k0;
      keys[at + c1] = k1;
      values[at + c0] = v0;
      values[at + c1] = v1;
      if (!appends || position < owned || position >= owned + task.item.q_count) return;
      const u32 block = table[position / p.block_size];
      const i32 slot = position % p.block_size;
      T* k = cache + layout.Index(block, 0, t.at.at[1], slot);
      T* value = cache + layout.Index(block, 1, t.at.at[1], slot);
      k[c0] = k0;
      k[c1] = k1;
      value[c0] = v0;
      value[c1] = v1;
    });
    w.Parallel((page + task.page_tokens - end) * p.head_dim, [&](i32 i) {
      values[(end - page) * p.head_dim + i] = Storage<T>::From(0.0f);
    });
    w.Sync();
  }

  // The wave's results join the running sums, in order; followed by a barrier.
  template <class T, class W>
  static EVT_FN void MergeWave(W& w, const AttentionTask& task, AttentionRoom<T>& room, i32 chunks,
                               bool first) {
    const i32 elements = task.rows * task.head_dim;
    w.Parallel(task.rows, [&](i32 row) {
      SoftmaxState running{MinusInfinity(), 0.0f};
      if (!first) running = room.running_state[row];
      EVT_ROLLED
      for (i32 slot = 0; slot < chunks; ++slot) {
        const SoftmaxMerge merge = MergeStates(running, room.state[slot * task.rows + row]);
        room.merge[slot * task.rows + row] = merge;
        running = merge.state;
      }
      room.running_state[row] = running;
    });
    w.Sync();
    w.Parallel(elements, [&](i32 i) {
      float sum = first ? 0.0f : room.running[i];
      const i32 row = i / task.head_dim;
      for (i32 slot = 0; slot < chunks; ++slot) {
        sum = MergeValue(room.merge[slot * task.rows + row], sum, room.results[slot * elements + i]);
      }
      room.running[i] = sum;
    });
    w.Sync();
  }

  // Partials: [slot][head][head_dim sums, maximum, sum of weights].
  static EVT_FN float* Partial(const Task<Params>& t, const AttentionTask& task, i32 order,
                               i32 row) {
    const Params& p = t.params();
    const i64 slot =
        task.item.partial_base + static_cast<i64>(order) * task.item.q_count + row / task.heads;
    return t.Operand<float>(AttentionOperand::kPartials) +
           (slot * p.kv_heads * p.group + task.Head(t, row)) * (p.head_dim + 2);
  }

  template <class W>
  static EVT_FN void StorePartial(W& w, const Task<Params>& t, const AttentionTask& task, i32 order,
                                  const float* sums, const SoftmaxState* state) {
    w.Parallel(task.rows * task.head_dim, [&](i32 i) {
      const i32 row = i / task.head_dim;
      Partial(t, task, order, row)[i % task.head_dim] = sums[i];
    });
    w.Parallel(task.rows, [&](i32 row) {
      float* partial = Partial(t, task, order, row) + task.head_dim;
      partial[0] = state[row].max;
      partial[1] = state[row].sum;
    });
  }

  // The last part of a tile to arrive merges all partials in order: true, and the tile's sums are `running`.
  template <class T, class W>
  static EVT_FN bool MergeParts(W& w, const Task<Params>& t, const AttentionTask& task,
                                AttentionRoom<T>& room) {
    const Params& p = t.params();
    const i32 splits = AttentionSplits(p.head_dim, p.group);
    u32* counter = t.Operand<u32>(AttentionOperand::kMerge) +
                   (task.item.group * p.kv_heads + t.at.at[1]) * splits + t.at.at[2];
    if (w.Arrive(counter) + 1 < static_cast<u32>(task.item.parts)) return false;
    if (w.Leader()) *counter = 0;  // for the next layer, which waits for this one's notify
    const i32 orders = task.Orders(t), wave = Wave(task), elements = task.rows * task.head_dim;
    EVT_ROLLED
    for (i32 first = 0; first < orders; first += wave) {
      const i32 count = Min(wave, orders - first);
      w.Parallel(count * task.rows, [&](i32 i) {
        const float* stored =
            Partial(t, task, first + i / task.rows, i % task.rows) + task.head_dim;
        room.state[i] = {stored[0], stored[1]};
      });
      w.Parallel(count * elements, [&](i32 i) {
        const i32 at = i % elements;
        room.results[i] =
            Partial(t, task, first + i / elements, at / task.head_dim)[at % task.head_dim];
      });
      w.Sync();
      MergeWave(w, task, room, count, first == 0);
    }
    return true;
  }

  template <class T, class W>
  static EVT_FN void StoreOutput(W& w, const Task<Params>& t, const AttentionTask& task,
                                 const float* sums, const SoftmaxState* state) {
    const Params& p = t.params();
    const i32 blocks = p.head_dim / 8;
    const i32 k = p.kv_heads * p.group * p.head_dim;
    const i32 token = task.row_start + task.item.q_first;
    T* output = t.Operand<T>(AttentionOperand::kOutput);
    w.Parallel(task.rows * blocks, [&](i32 i) {
      const i32 row = i / blocks, column = i % blocks * 8;
      const float inverse = state[row].sum > 0.0f ? Divide(1.0f, state[row].sum) : 0.0f;
      const float* from = sums + row * p.head_dim + column;
      T* to = output +
              ActivationIndex(k, token + row / task.heads, task.Head(t, row) * p.head_dim + column);
      for (i32 l = 0; l < 8; ++l) to[l] = Storage<T>::From(Multiply(from[l], inverse));
    });
  }
};

}  // namespace eventide
