// The end of a layer of experts, for 4 tokens x 256 columns: the residual takes up the outputs of each token's
// experts, best first, times their weights, then the shared expert's; leaves the next norm's input as
// ops/linear.h does after a residual.
//
// The order is that of ranks, a property of the token alone: neither neighbours nor arrival change it.
#pragma once

#include "device/dtype.h"
#include "device/layout.h"
#include "device/op.h"
#include "ops/expert_tables.h"

namespace eventide {

struct Combine {
  static constexpr OpInfo kInfo = {
      "combine",
      10,
      {In("outputs"), In("pairs"), In("pair_slot"), In("shared"), In("logits"), In("gain"),
       InOut("x"), Out("next"), Out("next_sums"), In("count")}};
  enum : int {
    kOutputs,  // float[slots][hidden]: what experts computed
    kPairs,
    kPairSlot,
    kShared,  // float[tokens][hidden]: what the shared expert computed
    kLogits,  // float[tokens][logits_stride]
    kGain,
    kX,
    kNext,
    kNextSums,
    kCount,  // i32[]: see Params
  };

  static constexpr i32 kTokens = 4;     // of a task
  static constexpr i32 kColumns = 256;  // likewise

  struct Params {
    DimRef tokens;
    i32 count_index;  // >= 0: the element of operand "count" that holds them
    i32 hidden;
    i32 top_k;
    i32 shared_gate;  // >= 0: there is a shared expert, times the sigmoid of this column of "logits"
    i32 logits_stride;
  };

  template <class T, class W>
  static EVT_FN void Compute(W& w, const Task<Params>& t) {
    const Params& p = t.params();
    const i32 first = t.at.at[0] * kTokens;
    const i32 all = p.count_index < 0 ? t.Dim(p.tokens) : t.Operand<const i32>(kCount)[p.count_index];
    const i32 tokens = Min(all - first, kTokens);
    const i32 first_column = t.at.at[1] * kColumns;
    const i32 columns = Min(p.hidden - first_column, kColumns);
    float* sums = reinterpret_cast<float*>(w.Scratch());
    float* x = t.Operand<float>(kX);
    T* next = t.Operand<T>(kNext);
    const T* gain = t.Operand<const T>(kGain);
    w.Parallel(tokens * columns, [&](i32 i) {
      const i32 token = first + i / columns, column = first_column + i % columns;
      const i64 at = static_cast<i64>(token) * p.hidden + column;
      const float value = Add(x[at], Sum(t, token, column));
      x[at] = value;
      sums[i] = value;
      next[ActivationIndex(p.hidden, token, column)] =
          Storage<T>::From(Multiply(value, ToFloat(gain[column])));
    });
    w.Sync();
    const i32 blocks = CeilDiv(columns, 16);
    float* next_sums = t.Operand<float>(kNextSums);
    w.Parallel(tokens * blocks, [&](i32 i) {
      const i32 block = i % blocks;
      const float* values = sums + i / blocks * columns + block * 16;
      float sum = 0.0f;
      EVT_ROLLED
      for (i32 c = 0; c < Min(16, columns - block * 16); ++c) sum = Fma(values[c], values[c], sum);
      next_sums[static_cast<i64>(first + i / blocks) * CeilDiv(p.hidden, 16) + first_column / 16 +
                block] = sum;
    });
  }

 private:
  static_assert(kTokens * kColumns * 4 <= static_cast<i32>(kScratchBytes));

  static EVT_FN float Sum(const Task<Params>& t, i32 token, i32 column) {
    const Params& p = t.params();
    const float* outputs = t.Operand<const float>(kOutputs) + column;
    const RoutedPair* pairs = t.Operand<const RoutedPair>(kPairs) + static_cast<i64>(token) * p.top_k;
    const i32* slot = t.Operand<const i32>(kPairSlot) + static_cast<i64>(token) * p.top_k;
    float sum = 0.0f;
    for (i32 k = 0; k < p.top_k; ++k) {
      sum = Fma(pairs[k].weight, outputs[static_cast<i64>(slot[k]) * p.hidden], sum);
    }
    if (p.shared_gate < 0) return sum;
    constexpr float kLog2E = 1.4426950408889634f;
    const float logit =
        t.Operand<const float>(kLogits)[static_cast<i64>(token) * p.logits_stride + p.shared_gate];
    const float gate = Divide(1.0f, Add(1.0f, Exp2(Multiply(-logit, kLog2E))));
    return Fma(gate, t.Operand<const float>(kShared)[static_cast<i64>(token) * p.hidden + column],
               sum);
  }
};

}  // namespace eventide
