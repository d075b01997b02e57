// Publishes how many tasks the next grid has: count[0] = x[0] % limit, so that extents are known to
// the device only.
#pragma once

#include "device/op.h"

namespace eventide {

struct ToyCount {
  static constexpr OpInfo kInfo = {"toy_count", 2, {In("x"), Out("count")}};
  struct Params {
    u32 limit;
  };
  template <class T, class W>
  static EVT_FN void Compute(W& w, const Task<Params>& t) {
    const u32 value = t.template Operand<const u32>(0)[0] % t.params().limit;
    if (w.Leader()) t.template Operand<i32>(1)[0] = static_cast<i32>(value);
  }
};

}  // namespace eventide
