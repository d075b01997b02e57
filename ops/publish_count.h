// A number that only the device knows, for graphs that try the runtime (ops/page_sum.h).
#pragma once

#include "device/op.h"

namespace eventide {

// Publishes a count that depends on what it reads: y = x[0] mod (limit + 1).
struct PublishCount {
  static constexpr OpInfo kInfo = {"publish_count", 2, {In("x"), Out("count")}};
  struct Params {
    i32 limit;
  };
  template <class T, class W>
  static EVT_FN void Compute(W&, const Task<Params>& t) {
    *t.template Operand<i32>(1) = static_cast<i32>(*t.template Operand<const u32>(0) %
                                                   static_cast<u32>(t.params().limit + 1));
  }
};

}  // namespace eventide
