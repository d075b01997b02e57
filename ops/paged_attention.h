// Causal attention over a paged KV cache, one task per attention item (ops/step_tables.h), KV head
// and split of its query heads. Takes the raw output of the qkv linear: QK-norm, rope and the
// append of new keys and values to the cache happen here, where they cost no hop.
//
// Keys of earlier steps stream in ahead of every wait. Those of this step are normed and rotated by
// every task that sees them (a few KiB of L2 reads); the one whose queries they belong to also
// stores them.
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
#include "ops/layout.h"
#include "ops/rope.h"
#include "ops/softmax.h"

namespace eventide {

struct PagedAttention {
  static constexpr OpInfo kInfo = {
      "paged_attention",
      10,
      {In("items"), In("row_start"), In("qkv"), InOut("cache"), In("q_norm"), In("k_norm"),
       In("rope"), InOut("partials"), InOut("merge"), Out("output")},
      /*stream_floor=*/2,
      /*input_floor=*/6};
  using Params = AttentionParams;

  // The cached part of each KV page: keys, then values.
  template <class T, class L>
  static EVT_FN void Stream(L& lane, const Task<Params>& t) {
    const Params& p = t.params();
    const AttentionTask task(t, static_cast<i32>(sizeof(T)));
    const KvLayout layout{p.block_size, p.kv_heads, p.head_dim};
    const T* cache = t.Operand<const T>(AttentionOperand::kCache);
    const u32* table = t.step.BlockTable(task.slot);
    const i32 piece = task.PieceTokens(p);
    const u32 token_bytes = static_cast<u32>(p.head_dim) * sizeof(T);
    task.ForEachPage([&](i32 page) {
      const i32 count = Min(task.context - page, task.page_tokens);
      if (count <= 0) return;
      const i32 pieces = CeilDiv(count, piece);
      const u32 last = static_cast<u32>(count - (pieces - 1) * piece) * token_bytes;
      for (i32 value = 0; value < 2; ++value) {
        lane.Copy(
            pieces, static_cast<u32>(piece) * token_bytes,
            [&](i32 i) {
              const i32 position = page + i * piece;
              return cache + layout.Index(table[position / p.block_size], value, t.at.at[1],
                                          position % p.block_size);
            },
            last);
      }
    });
  }

  // Room for queries, this chunk's sums, the running sums, scores; and for this step's keys and
  // values.
  template <class T, class L>
  static EVT_FN void Input(L& lane, const Task<Params>& t) {
    const AttentionTask task(t, static_cast<i32>(sizeof(T)));
    const i32 pages = task.high > task.context ? 6 : 4;
    for (i32 i = 0; i < pages; ++i) lane.Blank();
  }

  template <class T, class W>
  static EVT_FN void Compute(W& w, const Task<Params>& t) {
    const AttentionTask task(t, static_cast<i32>(sizeof(T)));
    AttentionRoom<T> room;
    room.Take(w, task.high > task.context);
    LoadQueries<T>(w, t, task, room);
    const bool first_part = task.item.part == 0;
    for (i32 chunk = task.item.chunk_first; chunk < task.item.chunk_end; ++chunk) {
      StartChunk(w, task, room);
      const i32 end = Min(ChunkStart(chunk + 1), task.high);
      for (i32 page = Max(ChunkStart(chunk), task.low); page < end; page += task.page_tokens) {
        Page<T>(w, t, task, room, page);
      }
      w.Sync();
      if (first_part) {
        MergeChunk(w, task, room, chunk == task.item.chunk_first);
      } else {
        const i32 order = task.item.first_order + chunk - task.item.chunk_first;
        StorePartial(w, t, task, order, room.sums, room.state);
      }
    }
    w.Sync();
    if (task.item.parts == 1) {
      StoreOutput<T>(w, t, task, room.running, room.running_state);
    } else {
      if (first_part) StorePartial(w, t, task, 0, room.running, room.running_state);
      MergeParts<T>(w, t, task, room);
    }
    room.Drop(w, task.high > task.context);
  }

 private:
  // Queries, normed, rotated, scaled and rounded to storage, as floats.
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
    w.Parallel(task.rows * half, [&](i32 i) {
      const i32 row = i / half, d = i % half;
      const i32 position = task.context + task.item.q_first + row / task.heads;
      const float* x = raw(row);
      RopePair pair{x[d], x[d + half]};
      if (p.qk_norm) pair = Gain(pair, room.inverse_rms[row], gain, d, half);
      pair = Rotate(pair, rope + (static_cast<i64>(position) * half + d) * 2);
      float* q = room.queries + row * p.head_dim + d;
      q[0] = ToFloat(Storage<T>::From(Multiply(pair.low, scale)));
      q[half] = ToFloat(Storage<T>::From(Multiply(pair.high, scale)));
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

  template <class T, class W>
  static EVT_FN void StartChunk(W& w, const AttentionTask& task, AttentionRoom<T>& room) {
    w.Parallel(task.rows, [&](i32 row) { room.state[row] = {MinusInfinity(), 0.0f}; });
    w.Parallel(task.rows * task.head_dim, [&](i32 i) { room.sums[i] = 0.0f; });
  }

  // Keys and values of one page join the chunk.
  template <class T, class W>
  static EVT_FN void Page(W& w, const Task<Params>& t, const AttentionTask& task,
                          AttentionRoom<T>& room, i32 page) {
    const i32 cached = Max(0, Min(task.context - page, task.page_tokens));
    decltype(w.Take(kLaneStream)) key_page{}, value_page{};
    if (cached > 0) {
      key_page = w.Take(kLaneStream);
      value_page = w.Take(kLaneStream);
    }
    const i32 end = Min(page + task.page_tokens, task.high);
    if (end - page > cached) FreshTokens<T>(w, t, task, room, page, page + cached, end);
    w.Sync();
    const KvMask mask{task.heads, task.context + task.item.q_first - page, t.params().window,
                      task.page_tokens};
    using View = KvPage<T, decltype(w.Take(kLaneStream))>;
    const i32 shift = task.PieceShift(t.params());
    AttentionScores<T>(w, room.queries, View{key_page, room.keys, cached, shift, task.head_dim},
                       mask, task.rows, room.scores);
    w.Sync();
    w.Parallel(task.rows, [&](i32 row) {
      room.factor[row] =
          SoftmaxPage(room.scores + row * task.page_tokens, task.page_tokens, room.state[row]);
    });
    w.Sync();
    AttentionValues<T>(w, room.scores, room.factor,
                       View{value_page, room.values, cached, shift, task.head_dim}, mask, task.rows,
                       room.sums);
    w.Sync();
    if (cached > 0) {
      w.Drop(kLaneStream);
      w.Drop(kLaneStream);
    }
  }

  // This step's keys and values at positions [first, end) of a page: into the task's own pages, and
  // into the cache if they belong to the item's queries.
  template <class T, class W>
  static EVT_FN void FreshTokens(W& w, const Task<Params>& t, const AttentionTask& task,
                                 AttentionRoom<T>& room, i32 page, i32 first, i32 end) {
    const Params& p = t.params();
    const i32 half = p.head_dim / 2;
    const T* gain = t.Operand<const T>(AttentionOperand::kKeyNorm);
    const float* rope = t.Operand<const float>(AttentionOperand::kRope);
    const KvLayout layout{p.block_size, p.kv_heads, p.head_dim};
    T* cache = t.Operand<T>(AttentionOperand::kCache);
    const u32* table = t.step.BlockTable(task.slot);
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
      const i32 at = (position - page) * p.head_dim + d;
      room.keys[at] = k0;
      room.keys[at + half] = k1;
      room.values[at] = v0;
      room.values[at + half] = v1;
      if (!appends || position < owned || position >= owned + task.item.q_count) return;
      const u32 block = table[position / p.block_size];
      const i32 slot = position % p.block_size;
      T* k = cache + layout.Index(block, 0, t.at.at[1], slot) + d;
      T* value = cache + layout.Index(block, 1, t.at.at[1], slot) + d;
      k[0] = k0;
      k[half] = k1;
      value[0] = v0;
      value[half] = v1;
    });
  }

  // The finished chunk joins the running sums.
  template <class T, class W>
  static EVT_FN void MergeChunk(W& w, const AttentionTask& task, AttentionRoom<T>& room,
                                bool first) {
    w.Parallel(task.rows, [&](i32 row) {
      SoftmaxState running{MinusInfinity(), 0.0f};
      if (!first) running = room.running_state[row];
      room.merge[row] = MergeStates(running, room.state[row]);
      room.running_state[row] = room.merge[row].state;
    });
    w.Sync();
    w.Parallel(task.rows * task.head_dim, [&](i32 i) {
      const float before = first ? 0.0f : room.running[i];
      room.running[i] = MergeValue(room.merge[i / task.head_dim], before, room.sums[i]);
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
    w.Sync();
  }

  // The last part of a tile to arrive merges all partials in order and writes the output.
  template <class T, class W>
  static EVT_FN void MergeParts(W& w, const Task<Params>& t, const AttentionTask& task,
                                AttentionRoom<T>& room) {
    const Params& p = t.params();
    const i32 splits = AttentionSplits(p.head_dim, p.group);
    u32* counter = t.Operand<u32>(AttentionOperand::kMerge) +
                   (task.item.group * p.kv_heads + t.at.at[1]) * splits + t.at.at[2];
    if (w.Arrive(counter) + 1 < static_cast<u32>(task.item.parts)) return;
    if (w.Leader()) *counter = 0;  // for the next layer, which waits for this one's notify
    const i32 orders = task.Orders(t);
    for (i32 order = 0; order < orders; ++order) {
      w.Parallel(task.rows, [&](i32 row) {
        const float* stored = Partial(t, task, order, row) + task.head_dim;
        room.state[row] = {stored[0], stored[1]};
      });
      w.Parallel(task.rows * task.head_dim, [&](i32 i) {
        room.sums[i] = Partial(t, task, order, i / task.head_dim)[i % task.head_dim];
      });
      w.Sync();
      MergeChunk(w, task, room, order == 0);
    }
    StoreOutput<T>(w, t, task, room.running, room.running_state);
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
