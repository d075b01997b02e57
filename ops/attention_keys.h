// Keys and values of a step's own tokens as attention sees them: normed, rotated, rounded to storage. Two ways lead
// to the same bits: every task that sees such a token makes them itself, or `append_kv` has put them into the cache.
#pragma once

#include "device/dtype.h"
#include "device/layout.h"
#include "ops/attention_task.h"
#include "ops/rope.h"

namespace eventide {

template <class W>
EVT_FN i32 QuerySwizzle(i32 head_dim) {
  return W::kSwizzledKv ? KvSwizzle(head_dim) : 0;
}

// (cos, sin) of a position's pairs.
EVT_FN const float* Angles(const Task<AttentionParams>& t, const AttentionTask& task, i32 position) {
  return t.Operand<const float>(AttentionOperand::kRope) +
         static_cast<i64>(task.Place(t, position)) * t.params().head_dim;
}

template <class T>
EVT_FN RopePair Gain(RopePair x, float inverse_rms, const T* gain, i32 d, i32 half) {
  return {Multiply(Multiply(x.low, inverse_rms), ToFloat(gain[d])),
          Multiply(Multiply(x.high, inverse_rms), ToFloat(gain[d + half]))};
}

struct alignas(16) Sixteen {
  u32 word[4];
};

// A page's values from element `used` of `all` on become zero: their weights are, but 0 * NaN is not.
template <class Tile, class T>
EVT_FN void ZeroRest(Tile& tile, T* values, i32 used, i32 all) {
  Sixteen* rest = reinterpret_cast<Sixteen*>(values + used);
  tile.ForEachColumn((all - used) * static_cast<i32>(sizeof(T)) / 16,
                     [&](i32 i) { rest[i] = Sixteen{{0, 0, 0, 0}}; });
  tile.Sync();
}

// This step's keys and values among positions [page, end): into the page, and into the cache if they
// belong to the item's queries. Values beyond `end` become zero.
template <class T, class W, class Tile>
EVT_FN void FreshTokens(Tile& tile, const Task<AttentionParams>& t, AttentionRoom<T>& room, i32 page, i32 end, T* keys,
                        T* values) {
  const AttentionParams& p = t.params();
  const AttentionTask& task = room.task;
  const i32 half = p.head_dim / 2;
  const i32 swizzle = QuerySwizzle<W>(p.head_dim);
  const KvLayout layout{p.block_size, p.kv_heads, p.head_dim};
  T* cache = t.Operand<T>(AttentionOperand::kCache);
  const u32* table = task.Table(t);
  const i32 first = Max(page, task.cached);
  const i32 owned = task.item.context + task.item.q_first;
  const bool appends = t.at.at[2] == 0;
  tile.ForEachRow(end - first, [&](i32 i) {
    const i32 position = first + i;
    const bool here = room.fresh && position == owned;  // tokens in front of it may be of this step, too
    T *cached_key = nullptr, *cached_value = nullptr;
    // No branches in here: nested deeply enough, they spill.
    const bool mine = appends & (position >= owned) & (position < owned + task.item.q_count);
    if (mine) {
      const u32 block = *(here ? &room.fresh_block : table + position / p.block_size);
      const i32 slot = position % p.block_size;
      const i32 head = Opaque(t.at.at[1]);  // what follows from it takes no registers outside
      cached_key = cache + layout.Index(block, 0, head, slot);
      cached_value = cache + layout.Index(block, 1, head, slot);
    }
    const i32 at = (position - page) * p.head_dim;
    if (here) {
      const Sixteen* token = reinterpret_cast<const Sixteen*>(room.fresh_token(p.head_dim));
      const i32 pieces = p.head_dim * static_cast<i32>(sizeof(T)) / 16;
      tile.ForEachColumn(2 * pieces, [&](i32 d) {
        const bool key = d < pieces;
        const i32 column = key ? d : d - pieces;
        reinterpret_cast<Sixteen*>((key ? keys : values) + at)[column] = token[d];
        if (mine) reinterpret_cast<Sixteen*>(key ? cached_key : cached_value)[column] = token[d];
      });
      return;
    }
    const float* x = task.Raw(t, position - task.item.context) + p.group * p.head_dim;
    const float* angles = Angles(t, task, position);
    const T* gain = t.Operand<const T>(AttentionOperand::kKeyNorm);
    float inverse_rms = 1.0f;
    if (p.qk_norm) {
      const float sum = tile.RowSum(p.head_dim, [&](i32 d) { return Multiply(x[d], x[d]); });
      inverse_rms = InverseRms(sum, p.head_dim, p.epsilon);
    }
    tile.ForEachColumn(half, [&](i32 d) {
      RopePair key{x[d], x[d + half]};
      if (p.qk_norm) key = Gain(key, inverse_rms, gain, d, half);
      key = Rotate(key, angles + d * 2);
      const float* v = x + p.head_dim;
      const T k0 = Storage<T>::From(key.low), k1 = Storage<T>::From(key.high);
      const T v0 = Storage<T>::From(v[d]), v1 = Storage<T>::From(v[d + half]);
      const i32 c0 = KvColumn(swizzle, position, d), c1 = KvColumn(swizzle, position, d + half);
      keys[at + c0] = k0;
      keys[at + c1] = k1;
      values[at + c0] = v0;
      values[at + c1] = v1;
      if (cached_key == nullptr) return;
      cached_key[c0] = k0;
      cached_key[c1] = k1;
      cached_value[c0] = v0;
      cached_value[c1] = v1;
    });
  });
  ZeroRest(tile, values, (end - page) * p.head_dim, static_cast<i32>(values - keys));
}

}  // namespace eventide
