// Ops without arithmetic of interest: each mixes a checksum of what it reads into what it writes,
// so that a read that came too early changes the result. For graphs that test the runtime, not
// numbers.
#pragma once

#include "device/op.h"

namespace eventide {

struct ToyParams {
  i32 seed = 0;
};

// One multiplicative hash step; not commutative, so that order shows.
EVT_FN u32 MixBits(u32 sum, u32 value) {
  sum = (sum ^ value) * 0x9e3779b1u;
  return sum ^ (sum >> 15);
}

// Reads one i32 tensor, writes another: y[task] = mix(x[task]) for one-dimensional grids.
struct Mix1 {
  static constexpr OpInfo kInfo = {"mix1", 2, {In("x"), Out("y")}};
  using Params = ToyParams;
  template <class W>
  static EVT_FN void Compute(W&, const Task<Params>& t) {
    const i32* x = t.Operand<const i32>(0);
    i32* y = t.Operand<i32>(1);
    const i32 at = t.at.at[0];
    y[at] = static_cast<i32>(MixBits(static_cast<u32>(t.params().seed), static_cast<u32>(x[at])));
  }
};

}  // namespace eventide
