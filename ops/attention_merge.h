// How results of attention's chunks are merged: left to right, two neighbours of a row at a time.
#pragma once

#include "device/neighbours.h"
#include "device/softmax.h"

namespace eventide {

// Floats of a row's results: sums, maximum, sum of weights.
EVT_FN constexpr i32 ResultFloats(i32 head_dim) { return head_dim + 2; }

// Two neighbours of a row's sums, and the row's state: chunks join in order.
struct MergedPair {
  SoftmaxState state = {MinusInfinity(), 0.0f};
  float low = 0.0f, high = 0.0f;

  // Results of `count` chunks, `stride` floats apart, of a row whose first ones are at `row`. Loads of kAtOnce of
  // them are on their way together.
  template <i32 kAtOnce>
  EVT_FN void Join(const float* row, i32 d, i32 head_dim, i32 stride, i32 count) {
    EVT_ROLLED
    for (i32 first = 0; first < count; first += kAtOnce) {
      Two<float> sums[kAtOnce], states[kAtOnce];
      for (i32 k = 0; k < kAtOnce; ++k) {
        const float* from = row + Min(first + k, count - 1) * stride;
        sums[k] = Two<float>::Of(from + d);
        states[k] = Two<float>::Of(from + head_dim);
      }
      for (i32 k = 0; k < kAtOnce; ++k) {
        if (first + k >= count) continue;
        const SoftmaxMerge merge = MergeStates(state, {states[k].at[0], states[k].at[1]});
        low = MergeValue(merge, low, sums[k].at[0]);
        high = MergeValue(merge, high, sums[k].at[1]);
        state = merge.state;
      }
    }
  }
};

}  // namespace eventide
