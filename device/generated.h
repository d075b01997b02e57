// The words that generated programs (jit/codegen.cc) are written with beside the loop's: boxes of
// event elements, and whether an op has a Stream part at all.
#pragma once

#include "device/dispatch.h"
#include "device/event.h"

namespace eventide {

// Stands for any worker in the question below: only declarations are looked at.
struct AnyLane {};

template <class Op, class T>
inline constexpr bool kHasStream = OpHasStream<Op, T, AnyLane>;

// The bytes of an op's parameters.
template <int kCount>
struct Words {
  u32 word[kCount];
};

struct IndexSpan {
  i32 low, high;
};

// One element; the dims that an event tensor lacks are 0.
EVT_FN ElementBox One(i32 event, i32 i0 = 0, i32 i1 = 0, i32 i2 = 0, i32 i3 = 0) {
  return ElementBox{event, {i0, i1, i2, i3}, {1, 1, 1, 1}};
}
// The elements low..high-1 in each dim; none where high <= low.
EVT_FN ElementBox Span(i32 event, IndexSpan s0, IndexSpan s1 = {0, 1}, IndexSpan s2 = {0, 1},
                       IndexSpan s3 = {0, 1}) {
  return ElementBox{event,
                    {s0.low, s1.low, s2.low, s3.low},
                    {Max(0, s0.high - s0.low), Max(0, s1.high - s1.low), Max(0, s2.high - s2.low),
                     Max(0, s3.high - s3.low)}};
}
EVT_FN ElementBox None() {
  return ElementBox{0, {0, 0, 0, 0}, {0, 0, 0, 0}};
}

}  // namespace eventide
