// Keys and values of tokens that left before a layer go to its KV cache: norm, rope and rounding as in
// ops/paged_attention.h, which does it for those who stay. Some tokens of one KV head; their rows have left
// the step, so nobody in it reads them.
#pragma once

#include "device/dtype.h"
#include "device/layout.h"
#include "device/op.h"
#include "ops/exit_tables.h"
#include "ops/rope.h"

namespace eventide {

struct ExitAppend {
  static constexpr OpInfo kInfo = {
      "exit_append",
      6,
      {In("projected"), In("left"), In("counts"), In("k_norm"), In("rope"), InOut("cache")},
      /*stream_floor=*/0,
      /*input_floor=*/0,
      /*constant_params=*/false,
      /*starts_early=*/false,
      /*even_tasks=*/true};
  enum : int {
    kProjected,  // float[left][kv_head][stride]: key, value; raw
    kLeft,       // ExitPlace[left]
    kCounts,     // the layer's line
    kKeyNorm,    // head_dim gains, if qk_norm
    kRope,
    kCache,
  };

  static constexpr i32 kMaxTokens = 64;

  struct Params {
    i32 tokens;  // of a task
    i32 head_dim, kv_heads;
    i32 stride;
    i32 block_size;
    i32 qk_norm;
    float epsilon;
  };

  template <class T, class W>
  static EVT_FN void Compute(W& w, const Task<Params>& t) {
    const Params& p = t.params();
    const i32 first = t.at.at[0] * p.tokens, head = t.at.at[1], half = p.head_dim / 2;
    const i32 count = Min(t.Operand<const i32>(kCounts)[kExitLeft] - first, p.tokens);
    const float* projected = t.Operand<const float>(kProjected);
    const auto raw = [&](i32 i) {
      return projected + (static_cast<i64>(first + i) * p.kv_heads + head) * p.stride;
    };
    static_assert(kMaxTokens * 4 <= static_cast<i32>(kScratchBytes));
    float* inverse_rms = reinterpret_cast<float*>(w.Scratch());
    if (p.qk_norm) {
      w.RowSums(
          count, p.head_dim,
          [&](i32 i, i32 d) {
            const float x = raw(i)[d];
            return Multiply(x, x);
          },
          [&](i32 i, float sum) { inverse_rms[i] = InverseRms(sum, p.head_dim, p.epsilon); });
      w.Sync();
    }
    const T* gain = t.Operand<const T>(kKeyNorm);
    const float* rope = t.Operand<const float>(kRope);
    const KvLayout layout{p.block_size, p.kv_heads, p.head_dim};
    const i32 swizzle = W::kSwizzledKv ? KvSwizzle(p.head_dim) : 0;
    T* cache = t.Operand<T>(kCache);
    w.Parallel(count * half, [&](i32 at) {
      const i32 i = at / half, d = at % half;
      const ExitPlace place = t.Operand<const ExitPlace>(kLeft)[first + i];
      const float* x = raw(i);
      RopePair key{x[d], x[d + half]};
      if (p.qk_norm) {
        key = {Multiply(Multiply(key.low, inverse_rms[i]), ToFloat(gain[d])),
               Multiply(Multiply(key.high, inverse_rms[i]), ToFloat(gain[d + half]))};
      }
      key = Rotate(key, rope + (static_cast<i64>(place.position) * half + d) * 2);
      const u32 block = t.step.BlockTable(static_cast<u32>(place.slot))[place.position / p.block_size];
      const i32 slot = place.position % p.block_size;
      T* keys = cache + layout.Index(block, 0, head, slot);
      T* values = cache + layout.Index(block, 1, head, slot);
      const i32 low = KvColumn(swizzle, place.position, d);
      const i32 high = KvColumn(swizzle, place.position, d + half);
      keys[low] = Storage<T>::From(key.low);
      keys[high] = Storage<T>::From(key.high);
      values[low] = Storage<T>::From(x[p.head_dim + d]);
      values[high] = Storage<T>::From(x[p.head_dim + d + half]);
    });
  }
};

}  // namespace eventide
