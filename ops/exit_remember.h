// What the first point of early exit compares with: the states of 8 tokens in front of all layers, and
// that nobody has been decided (ops/exit_test.h).
#pragma once

#include "device/op.h"

namespace eventide {

struct ExitRemember {
  static constexpr OpInfo kInfo = {
      "exit_remember",
      5,
      {In("x"), In("sums"), Out("decided"), Out("state"), Out("state_sums")}};
  enum : int { kX, kSums, kDecided, kState, kStateSums };

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
    const i32 tokens = Min(t.Dim(p.tokens) - first, kTokens);
    const i32 columns = Min(p.hidden - first_column, kColumns);
    Copy(w, t, {kX, kState, p.hidden, first, tokens, first_column, columns});
    Copy(w, t, {kSums, kStateSums, CeilDiv(p.hidden, 16), first, tokens, first_column / 16,
                CeilDiv(columns, 16)});
    if (first_column > 0) return;
    i32* decided = t.Operand<i32>(kDecided) + first;
    w.Parallel(tokens, [&](i32 i) { decided[i] = 0; });
  }

 private:
  struct Part {
    i32 from, to, stride, first, tokens, first_column, columns;
  };
  template <class W>
  static EVT_FN void Copy(W& w, const Task<Params>& t, const Part& part) {
    const i64 begin = static_cast<i64>(part.first) * part.stride + part.first_column;
    const float* from = t.Operand<const float>(part.from) + begin;
    float* to = t.Operand<float>(part.to) + begin;
    w.Parallel(part.tokens * part.columns, [&](i32 i) {
      const i64 at = static_cast<i64>(i / part.columns) * part.stride + i % part.columns;
      to[at] = from[at];
    });
  }
};

}  // namespace eventide
