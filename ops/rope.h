// Rotary position embedding of one pair of elements, and where an RMS norm of a head comes in.
// Written with explicit roundings: several tasks compute the same key, and all must get the same
// bits.
#pragma once

#include "device/base.h"

namespace eventide {

struct RopePair {
  float low, high;  // elements i and i + head_dim / 2
};

// `angle` points at (cos, sin) of the pair's position.
EVT_FN RopePair Rotate(RopePair x, const float* angle) {
  const float c = angle[0], s = angle[1];
  return {Fma(x.low, c, -Multiply(x.high, s)), Fma(x.high, c, Multiply(x.low, s))};
}

// 1 / rms of n elements whose squares add up to `sum`.
EVT_FN float InverseRms(float sum, i32 n, float epsilon) {
  return Divide(1.0f, SquareRoot(Add(Divide(sum, static_cast<float>(n)), epsilon)));
}

}  // namespace eventide
