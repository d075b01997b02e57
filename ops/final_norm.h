// RMS norm of the tokens whose logits are wanted, gathered from the residual into activations of
// the head.
#pragma once

#include "device/dtype.h"
#include "device/layout.h"
#include "device/op.h"
#include "ops/rope.h"
#include "ops/step_tables.h"

namespace eventide {

struct FinalNorm {
  static constexpr OpInfo kInfo = {
      "final_norm",
      6,
      {In("x"), In("sums"), In("gain"), In("output_token"), In("counts"), Out("output")}};
  enum : int { kX, kSums, kGain, kOutputToken, kCounts, kOutput };

  static constexpr i32 kTokens = 8;     // of a task
  static constexpr i32 kColumns = 256;  // likewise

  struct Params {
    i32 hidden;
    float epsilon;
  };

  template <class T, class W>
  static EVT_FN void Compute(W& w, const Task<Params>& t) {
    const Params& p = t.params();
    const i32 first = t.at.at[0] * kTokens;
    const i32 count = Min(t.Operand<const i32>(kCounts)[kCountOutputs] - first, kTokens);
    const i32 first_column = t.at.at[1] * kColumns;
    const i32 columns = Min(p.hidden - first_column, kColumns);
    const i32 blocks = CeilDiv(p.hidden, 16);
    const float* x = t.Operand<const float>(kX);
    const float* sums = t.Operand<const float>(kSums);
    const i32* output_token = t.Operand<const i32>(kOutputToken) + first;
    const T* gain = t.Operand<const T>(kGain);
    T* output = t.Operand<T>(kOutput);
    float* inverse_rms = reinterpret_cast<float*>(w.Scratch());
    w.RowSums(
        count, blocks,
        [&](i32 i, i32 block) { return sums[static_cast<i64>(output_token[i]) * blocks + block]; },
        [&](i32 i, float sum) { inverse_rms[i] = InverseRms(sum, p.hidden, p.epsilon); });
    w.Sync();
    w.Parallel(count * columns, [&](i32 k) {
      const i32 i = k / columns, column = first_column + k % columns;
      const float value = x[static_cast<i64>(output_token[i]) * p.hidden + column];
      output[ActivationIndex(p.hidden, first + i, column)] =
          Storage<T>::From(Multiply(Multiply(value, inverse_rms[i]), ToFloat(gain[column])));
    });
  }
};

}  // namespace eventide
