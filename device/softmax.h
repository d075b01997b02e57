// The running softmax of attention: one KV page into a chunk, one chunk into what came before it.
// All exponents are of 2; scores arrive scaled by log2(e).
#pragma once

#include "device/base.h"

namespace eventide {

// Largest score and sum of weights so far; max is -inf while no key was seen.
struct SoftmaxState {
  float max, sum;
};

EVT_FN float MinusInfinity() {
  return BitsFloat(0xff800000u);
}

// Factors with which the sums of a running state and of the next chunk are added, and the state of
// both.
struct SoftmaxMerge {
  float running, chunk;
  SoftmaxState state;
};

// A side that saw nothing leaves the other's bits alone: its factor and its sums are 0, the other's factor 1.
EVT_FN SoftmaxMerge MergeStates(const SoftmaxState& running, const SoftmaxState& chunk) {
  const float max = Max(running.max, chunk.max);
  // Nothing minus nothing would be NaN.
  const float reference = max == MinusInfinity() ? 0.0f : max;
  const float a = Exp2(Add(running.max, -reference));
  const float b = Exp2(Add(chunk.max, -reference));
  return {a, b, {max, Fma(chunk.sum, b, Multiply(running.sum, a))}};
}

EVT_FN float MergeValue(const SoftmaxMerge& merge, float running, float chunk) {
  return Fma(chunk, merge.chunk, Multiply(running, merge.running));
}

}  // namespace eventide
