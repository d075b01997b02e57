// total[0] = sum of mark[0 .. count[0]), one task.
#pragma once

#include "device/op.h"

namespace eventide {

struct ToyTotal {
  static constexpr OpInfo kInfo = {"toy_total", 3, {In("mark"), In("count"), Out("total")}};
  struct Params {
    i32 unused;
  };
  template <class T, class W>
  static EVT_FN void Compute(W& w, const Task<Params>& t) {
    if (!w.Leader()) return;
    const u32* mark = t.template Operand<const u32>(0);
    const i32 count = t.template Operand<const i32>(1)[0];
    u32 sum = 0;
    for (i32 i = 0; i < count; ++i) sum += mark[i];
    t.template Operand<u32>(2)[0] = sum;
  }
};

}  // namespace eventide
