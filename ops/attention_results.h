// What becomes of the results of attention's chunks: kept in Scratch until they are merged, or left in memory as the
// partials of a tile of several parts, whose last part to arrive merges them.
#pragma once

#include "device/layout.h"
#include "device/op.h"
#include "ops/attention_merge.h"
#include "ops/attention_task.h"

namespace eventide {

template <class T>
struct AttentionResults {
  // How far a task is, in one register: merges so far, since the running state's two places take turns, and results in
  // Scratch that have not been merged.
  class Turn {
   public:
    EVT_FN i32 Merges() const { return static_cast<i32>(state_ / kKept); }
    EVT_FN i32 Kept() const { return static_cast<i32>(state_ % kKept); }
    EVT_FN void Keep(i32 results) { state_ += static_cast<u32>(results); }
    EVT_FN void Merged() { state_ = state_ / kKept * kKept + kKept; }

   private:
    static constexpr u32 kKept = 4096;  // more than fit Scratch
    u32 state_ = 0;
  };
  // What the groups have of a wave's chunks.
  template <class W, class Tile>
  static EVT_FN void Leave(W& w, const Task<AttentionParams>& t, AttentionRoom<T>& room, Tile& tile, i32 first,
                           i32 chunks, i32 wave, i32 slot, Turn& turn) {
    const AttentionParams& p = t.params();
    const AttentionTask& task = room.task;
    // Results wait in registers until there is room for them. Those of parts go straight to memory.
    slot = Opaque(slot);  // what follows from it takes no registers outside
    const bool merges = Opaque(task.item.part) == 0;
    const i32 left = task.item.chunk_end - first - wave;
    // Groups begin with the next wave one by one if its results have room beside these, and if its pages are so near
    // that a group cannot take a page of this wave, in the same slot, for one that it looks for (W::Peek).
    const bool goes_on = left > 0 && task.Near(p, static_cast<i32>(sizeof(T)), first, first + chunks) &&
                         (!merges || turn.Kept() + chunks + Min(wave, left) <= room.slots);
    EVT_ROLLED
    for (i32 done = 0; done < chunks; done += room.slots) {
      const i32 count = merges ? Min(room.slots, chunks - done) : chunks;
      if (slot >= done && slot < done + count) {
        const i32 order = Opaque(task.item.first_order + first + slot - task.item.chunk_first);
        const i32 floats = ResultFloats(p.head_dim);
        tile.Store(task.rows, p.head_dim, [&](i32 row) {
          return merges ? room.results() + ((turn.Kept() + slot - done) * task.rows + row) * floats
                        : Partial(t, task, order, row);
        });
      }
      if (goes_on) {
        turn.Keep(chunks);
        break;
      }
      if (!merges) {
        if (left > 0) w.Sync();
        break;
      }
      w.Sync();
      const bool last = first + done + count >= task.item.chunk_end;
      Merge(w, t, room, turn.Kept() + count, turn.Merges(), last);
      turn.Merged();
      if (!last) w.Sync();
    }
  }

  // The last part of a tile to arrive merges the partials of all, in order.
  template <class W>
  static EVT_FN void MergeParts(W& w, const Task<AttentionParams>& t, AttentionRoom<T>& room) {
    const AttentionParams& p = t.params();
    const AttentionTask& task = room.task;
    const i32 splits = AttentionSplits(p.head_dim, p.group, static_cast<i32>(sizeof(T)));
    u32* counter = t.Operand<u32>(AttentionOperand::kMerge) +
                   (task.item.group * p.kv_heads + t.at.at[1]) * splits + t.at.at[2];
    if (w.Arrive(counter) + 1 < static_cast<u32>(task.item.parts)) return;
    if (w.Leader()) *counter = 0;  // for the next layer, which waits for this one's notify
    const i32 orders = room.orders, pairs = p.head_dim / 2;
    const i32 stride = task.item.q_count * p.kv_heads * p.group * ResultFloats(p.head_dim);
    w.Parallel(task.rows * pairs, [&](i32 i) {
      const i32 row = i / pairs, d = i % pairs * 2;
      MergedPair merged;
      merged.Join<8>(Partial(t, task, 0, row), d, p.head_dim, stride, orders);
      StoreOutput(t, task, row, d, merged);
    });
  }

  // Where a row's output goes, from dim d on.
  static EVT_FN T* OutputOf(const Task<AttentionParams>& t, const AttentionTask& task, i32 row, i32 d) {
    const AttentionParams& p = t.params();
    const i32 k = p.kv_heads * p.group * p.head_dim;
    const i32 token = task.row_start + task.item.q_first;
    const AttentionCut cut(p, static_cast<i32>(sizeof(T)));
    const i32 heads = cut.Heads(p, t.at.at[2]);
    return t.Operand<T>(AttentionOperand::kOutput) +
           ActivationIndex(k, token + row / heads, Head(p, cut, t.at, row % heads) * p.head_dim + d);
  }

 private:
  // Results of some chunks in Scratch join what came before them. The last ones of the task leave its output, or
  // the first partial of a tile of several parts.
  template <class W>
  static EVT_FN void Merge(W& w, const Task<AttentionParams>& t, AttentionRoom<T>& room, i32 count, i32 turn,
                           bool last) {
    const AttentionParams& p = t.params();
    const AttentionTask& task = room.task;
    const i32 pairs = p.head_dim / 2;
    w.Parallel(task.rows * pairs, [&](i32 i) {
      const i32 row = i / pairs, d = i % pairs * 2;
      float* running = room.running() + row * p.head_dim + d;
      MergedPair merged;
      if (turn > 0) {
        merged.state = room.running_state[turn % 2][row];
        merged.low = running[0];
        merged.high = running[1];
      }
      const i32 floats = ResultFloats(p.head_dim);
      merged.Join<4>(room.results() + row * floats, d, p.head_dim, task.rows * floats, count);
      if (last && task.item.parts == 1) {
        StoreOutput(t, task, row, d, merged);
        return;
      }
      float* state = &room.running_state[(turn + 1) % 2][row].max;
      if (last) {
        running = Partial(t, task, 0, row) + d;
        state = running + p.head_dim;
      }
      Two<float>{merged.low, merged.high}.To(running);
      if (d > 0) return;
      state[0] = merged.state.max;
      state[1] = merged.state.sum;
    });
  }

  // Partials: [slot][head][head_dim sums, maximum, sum of weights].
  static EVT_FN float* Partial(const Task<AttentionParams>& t, const AttentionTask& task, i32 order,
                                i32 row) {
    const AttentionParams& p = t.params();
    const AttentionCut cut(p, static_cast<i32>(sizeof(T)));
    const i32 heads = cut.Heads(p, t.at.at[2]);
    const i64 slot =
        task.item.partial_base + static_cast<i64>(order) * task.item.q_count + row / heads;
    return t.Operand<float>(AttentionOperand::kPartials) +
           (slot * p.kv_heads * p.group + Head(p, cut, t.at, row % heads)) * ResultFloats(p.head_dim);
  }
  // A query head among all: `head` counts those of the task.
  static EVT_FN i32 Head(const AttentionParams& p, const AttentionCut& cut, const Coord& at, i32 head) {
    return at.at[1] * p.group + at.at[2] * cut.split_heads + head;
  }

  static EVT_FN void StoreOutput(const Task<AttentionParams>& t, const AttentionTask& task, i32 row, i32 d,
                                 const MergedPair& merged) {
    const float inverse = merged.state.sum > 0.0f ? Divide(1.0f, merged.state.sum) : 0.0f;
    const Two<T> out = {Storage<T>::From(Multiply(merged.low, inverse)),
                        Storage<T>::From(Multiply(merged.high, inverse))};
    out.To(OutputOf(t, task, row, d));
  }
};

}  // namespace eventide
