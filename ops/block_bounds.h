// The least and the largest of each column over the keys of a KV block, for one row and KV head: of all blocks
// that this step's tokens went to. What ops/pick_blocks.h scores full blocks by. From the cache itself, so it
// does not matter in which steps a block was filled.
#pragma once

#include "device/dtype.h"
#include "device/layout.h"
#include "device/op.h"

namespace eventide {

struct BlockBounds {
  static constexpr OpInfo kInfo = {
      "block_bounds", 3, {In("row_start"), In("cache"), InOut("bounds")}};
  enum : int { kRowStart, kCache, kBounds };

  struct Params {
    i32 head_dim, kv_heads;
    i32 block_size;
  };

  template <class T, class W>
  static EVT_FN void Compute(W& w, const Task<Params>& t) {
    const Params& p = t.params();
    const i32 r = t.at.at[0], head = t.at.at[1];
    const i32* row_start = t.Operand<const i32>(kRowStart);
    const i32 length = row_start[r + 1] - row_start[r];
    if (length == 0) return;
    const u32 slot = t.step.Rows()[r].slot;
    const i32 context = static_cast<i32>(t.step.Slots()[slot].context_length);
    const i32 first = context / p.block_size, end = CeilDiv(context + length, p.block_size);
    const u32* table = t.step.BlockTable(slot);
    const KvLayout layout{p.block_size, p.kv_heads, p.head_dim};
    const T* cache = t.Operand<const T>(kCache);
    T* bounds = t.Operand<T>(kBounds);
    const i32 swizzle = W::kSwizzledKv ? KvSwizzle(p.head_dim) : 0;
    w.Parallel((end - first) * p.head_dim, [&](i32 i) {
      const i32 block = first + i / p.head_dim, d = i % p.head_dim;
      const i32 tokens = Min(context + length - block * p.block_size, p.block_size);
      const T* keys = cache + layout.Index(table[block], 0, head, 0);
      T low = keys[KvColumn(swizzle, 0, d)], high = low;
      EVT_ROLLED
      for (i32 token = 1; token < tokens; ++token) {
        const T key = keys[token * p.head_dim + KvColumn(swizzle, token, d)];
        if (ToFloat(key) < ToFloat(low)) low = key;
        if (ToFloat(key) > ToFloat(high)) high = key;
      }
      T* to = bounds + (static_cast<i64>(table[block]) * p.kv_heads + head) * 2 * p.head_dim + d;
      to[0] = low;
      to[p.head_dim] = high;
    });
  }
};

}  // namespace eventide
