// Writes x[token][column] = Hash(seed, token * 64 + column), one task per 8 tokens. For tests of
// whole launches: exact integers, so that every target must give the same bits.
#pragma once

#include "tests/jit/ops/toy_base.h"

namespace eventide {

struct ToyFill {
  static constexpr OpInfo kInfo = {"toy_fill", 1, {Out("x")}};
  struct Params {
    DimRef tokens;
    u32 seed;
  };

  template <class T, class W>
  static EVT_FN void Compute(W& w, const Task<Params>& t) {
    const Params& p = t.params();
    u32* x = t.template Operand<u32>(0);
    const i32 first = t.at.at[0] * kToyTokens;
    const i32 tokens = Min(kToyTokens, t.Dim(p.tokens) - first);
    w.Parallel(tokens * kToyColumns, [&](i32 i) {
      const i32 at = first * kToyColumns + i;
      x[at] = ToyHash(p.seed, static_cast<u32>(at));
    });
  }
};

}  // namespace eventide
