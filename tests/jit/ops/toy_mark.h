// mark[task] = x[task] + 1, one task per element.
#pragma once

#include "device/op.h"

namespace eventide {

struct ToyMark {
  static constexpr OpInfo kInfo = {"toy_mark", 2, {In("x"), Out("mark")}};
  struct Params {
    i32 unused;
  };
  template <class T, class W>
  static EVT_FN void Compute(W& w, const Task<Params>& t) {
    const u32* x = t.template Operand<const u32>(0);
    if (w.Leader()) t.template Operand<u32>(1)[t.at.at[0]] = x[t.at.at[0]] + 1;
  }
};

}  // namespace eventide
