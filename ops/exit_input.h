// What a layer's keys and values are computed from, for tokens that left before it: their states times the
// layer's gains, as activations. 8 tokens x 256 columns; no layer's task waits for another's.
#pragma once

#include "device/dtype.h"
#include "device/layout.h"
#include "device/op.h"
#include "ops/exit_tables.h"

namespace eventide {

struct ExitInput {
  static constexpr OpInfo kInfo = {
      "exit_input", 4, {In("x"), In("gain"), In("counts"), Out("output")},
      /*stream_floor=*/0,
      /*input_floor=*/0,
      /*constant_params=*/false,
      /*starts_early=*/false,
      /*even_tasks=*/true};
  enum : int {
    kX,  // float[2 tokens][hidden]: from `tokens` on, those who left
    kGain,
    kCounts,  // the layer's line
    kOutput,
  };

  static constexpr i32 kTokens = 8;     // of a task
  static constexpr i32 kColumns = 256;  // likewise

  struct Params {
    DimRef tokens;
    i32 hidden;
  };

  template <class T, class W>
  static EVT_FN void Compute(W& w, const Task<Params>& t) {
    const Params& p = t.params();
    const i32 first = t.at.at[0] * kTokens, first_column = t.at.at[1] * kColumns;
    const i32 count = Min(t.Operand<const i32>(kCounts)[kExitLeft] - first, kTokens);
    const i32 columns = Min(p.hidden - first_column, kColumns);
    const float* x = t.Operand<const float>(kX) +
                     (static_cast<i64>(t.Dim(p.tokens)) + first) * p.hidden + first_column;
    const T* gain = t.Operand<const T>(kGain) + first_column;
    T* output = t.Operand<T>(kOutput);
    w.Parallel(count * columns, [&](i32 i) {
      const i32 token = i / columns, column = i % columns;
      const float value = x[static_cast<i64>(token) * p.hidden + column];
      output[ActivationIndex(p.hidden, first + token, first_column + column)] =
          Storage<T>::From(Multiply(value, ToFloat(gain[column])));
    });
  }
};

}  // namespace eventide
