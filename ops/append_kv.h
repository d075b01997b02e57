// Keys and values of all of a step's tokens go to the KV cache before attention begins, in steps with rows of many
// query tokens: there the many tiles of a row would each norm and rotate all tokens in front of them once more.
// Some tokens of one KV head.
//
// Cost: keys and values read once, written once; a hop.
#pragma once

#include "device/op.h"
#include "ops/attention_keys.h"
#include "ops/step_tables.h"

namespace eventide {

struct AppendKv {
  static constexpr OpInfo kInfo = {
      "append_kv", 6, {In("row_start"), In("token_row"), In("qkv"), In("k_norm"), In("rope"), InOut("cache")}};
  enum : int {
    kRowStart,
    kTokenRow,
    kQkv,      // float[token][kv_head][qkv_stride]: query heads, key, value; raw
    kKeyNorm,  // head_dim gains, if qk_norm
    kRope,
    kCache,
  };

  static constexpr i32 kTokens = 32;  // of a task

  struct Params {
    i32 head_dim, kv_heads, group;
    i32 qkv_stride;
    i32 block_size;
    float epsilon;
    i32 qk_norm;
  };

  template <class T, class W>
  static EVT_FN void Compute(W& w, const Task<Params>& t) {
    const Params& p = t.params();
    const i32 first = t.at.at[0] * kTokens, head = t.at.at[1], half = p.head_dim / 2;
    const i32 count = Min(t.Operand<const i32>(kRowStart)[t.step.header->rows] - first, kTokens);
    Memory& m = *reinterpret_cast<Memory*>(w.Scratch());
    const KvLayout layout{p.block_size, p.kv_heads, p.head_dim};
    const auto raw = [&](i32 i) {
      return t.Operand<const float>(kQkv) + (static_cast<i64>(first + i) * p.kv_heads + head) * p.qkv_stride +
             p.group * p.head_dim;
    };
    w.Sync();  // the task before may still be reading Scratch
    w.Parallel(count, [&](i32 i) {
      const i32 row = t.Operand<const i32>(kTokenRow)[first + i];
      const u32 slot = t.step.Rows()[row].slot;
      const i32 position = static_cast<i32>(t.step.Slots()[slot].context_length) + first + i -
                           t.Operand<const i32>(kRowStart)[row];
      m.position[i] = position;
      m.at[i] = layout.Index(t.step.BlockTable(slot)[position / p.block_size], 0, head, position % p.block_size);
    });
    if (p.qk_norm) {
      w.RowSums(
          count, p.head_dim,
          [&](i32 i, i32 d) {
            const float x = raw(i)[d];
            return Multiply(x, x);
          },
          [&](i32 i, float sum) { m.inverse_rms[i] = InverseRms(sum, p.head_dim, p.epsilon); });
    }
    w.Sync();
    const T* gain = t.Operand<const T>(kKeyNorm);
    const float* rope = t.Operand<const float>(kRope);
    const i32 swizzle = QuerySwizzle<W>(p.head_dim), pairs = half / 2;
    const u64 values = layout.Index(0, 1, 0, 0);
    w.Parallel(count * pairs, [&](i32 j) {
      const i32 i = j / pairs, at = j % pairs * 2, position = m.position[i];
      const float* x = raw(i) + at;
      const float* angles = rope + static_cast<i64>(position) * p.head_dim + at * 2;
      const Two<float> key[2] = {Two<float>::Of(x), Two<float>::Of(x + half)};
      const Two<float> value[2] = {Two<float>::Of(x + p.head_dim), Two<float>::Of(x + p.head_dim + half)};
      const Four<float> angle = Four<float>::Of(angles);
      Two<T> keys[2], stored[2];
      for (i32 k = 0; k < 2; ++k) {
        RopePair pair{key[0].at[k], key[1].at[k]};
        if (p.qk_norm) pair = Gain(pair, m.inverse_rms[i], gain, at + k, half);
        pair = Rotate(pair, &angle.at[k * 2]);
        keys[0].at[k] = Storage<T>::From(pair.low);
        keys[1].at[k] = Storage<T>::From(pair.high);
        stored[0].at[k] = Storage<T>::From(value[0].at[k]);
        stored[1].at[k] = Storage<T>::From(value[1].at[k]);
      }
      T* to = t.Operand<T>(kCache) + m.at[i];
      const i32 low = KvColumn(swizzle, position, at), high = KvColumn(swizzle, position, at + half);
      keys[0].To(to + low);
      keys[1].To(to + high);
      stored[0].To(to + values + low);
      stored[1].To(to + values + high);
    });
  }

 private:
  struct Memory {
    u64 at[kTokens];  // of the key in the cache
    i32 position[kTokens];
    float inverse_rms[kTokens];
  };
  static_assert(sizeof(Memory) <= kScratchBytes);
};

}  // namespace eventide
