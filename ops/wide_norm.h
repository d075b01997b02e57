// RMS norms over all query heads of a token together and over all its key heads, in place on raw projections,
// before anything looks at single heads (OLMoE). One task for 8 tokens.
#pragma once

#include "device/op.h"
#include "ops/rope.h"

namespace eventide {

struct WideNorm {
  static constexpr OpInfo kInfo = {
      "wide_norm", 3, {InOut("qkv"), In("q_gain"), In("k_gain")}};
  enum : int { kQkv, kQGain, kKGain };

  static constexpr i32 kTokens = 8;  // of a task

  // A token's projections: for each KV head its `group` queries, the key, the value, padding to
  // `head_stride` floats.
  struct Params {
    DimRef tokens;
    i32 head_dim, kv_heads, group;
    i32 head_stride;
    i32 token_stride;
    float epsilon;
  };

  template <class T, class W>
  static EVT_FN void Compute(W& w, const Task<Params>& t) {
    const Params& p = t.params();
    const i32 first = t.at.at[0] * kTokens;
    const i32 tokens = Min(t.Dim(p.tokens) - first, kTokens);
    const i32 keys = p.kv_heads * p.head_dim, queries = keys * p.group;
    float* qkv = t.Operand<float>(kQkv) + static_cast<i64>(first) * p.token_stride;
    float* scale = reinterpret_cast<float*>(w.Scratch());  // [token][queries, keys]
    w.RowSums(
        2 * tokens, queries,
        [&](i32 row, i32 i) {
          if (row % 2 == 1 && i >= keys) return 0.0f;
          const float value = qkv[static_cast<i64>(row / 2) * p.token_stride + At(p, row % 2, i)];
          return Multiply(value, value);
        },
        [&](i32 row, float sum) {
          scale[row] = InverseRms(sum, row % 2 == 0 ? queries : keys, p.epsilon);
        });
    w.Sync();
    const T* q_gain = t.Operand<const T>(kQGain);
    const T* k_gain = t.Operand<const T>(kKGain);
    w.Parallel(tokens * (queries + keys), [&](i32 i) {
      const i32 token = i / (queries + keys), at = i % (queries + keys);
      const i32 part = at < queries ? 0 : 1, element = at - part * queries;
      float& value = qkv[static_cast<i64>(token) * p.token_stride + At(p, part, element)];
      const float gain = ToFloat(part == 0 ? q_gain[element] : k_gain[element]);
      value = Multiply(Multiply(value, scale[token * 2 + part]), gain);
    });
  }

 private:
  // Where element `i` of all queries (part 0) or keys (part 1) of a token lies.
  static EVT_FN i32 At(const Params& p, i32 part, i32 i) {
    const i32 head = i / p.head_dim, d = i % p.head_dim;
    if (part == 1) return head * p.head_stride + p.group * p.head_dim + d;
    return head / p.group * p.head_stride + head % p.group * p.head_dim + d;
  }
};

}  // namespace eventide
