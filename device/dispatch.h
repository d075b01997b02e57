// What generated programs are written with: calls of an op's parts, where it has them, and boxes of event
// elements. An op's parts are templates over the storage type and the worker (device/op.h).
#pragma once

#include "device/dtype.h"
#include "device/event.h"
#include "device/op.h"

namespace eventide {

// Stands for any worker when asking whether an op has a part: only the declaration is looked at.
struct AnyLane {};

template <class Op, class T>
inline constexpr bool kHasStream = requires { &Op::template Stream<T, AnyLane>; };
template <class Op, class T>
inline constexpr bool kHasInput = requires { &Op::template Input<T, AnyLane>; };

template <class Op, class T, class W>
EVT_FN void CallStream(W& w, const StepView& step, const Node& node, const Coord& at) {
  if constexpr (kHasStream<Op, T>) {
    Op::template Stream<T>(w, Task<typename Op::Params>{step, node, at});
  }
}

template <class Op, class T, class W>
EVT_FN void CallInput(W& w, const StepView& step, const Node& node, const Coord& at) {
  if constexpr (kHasInput<Op, T>) {
    Op::template Input<T>(w, Task<typename Op::Params>{step, node, at});
  }
}

template <class Op, class T, class W>
EVT_FN void CallCompute(W& w, const StepView& step, const Node& node, const Coord& at) {
  Op::template Compute<T>(w, Task<typename Op::Params>{step, node, at});
}

// One element, and the elements [low, high) in each dim; dims an event tensor lacks keep their defaults.
EVT_FN ElementBox One(i32 event, i32 i0 = 0, i32 i1 = 0, i32 i2 = 0) {
  return ElementBox{event, {i0, i1, i2}, {1, 1, 1}};
}
EVT_FN ElementBox Span(i32 event, i32 low0, i32 high0, i32 low1 = 0, i32 high1 = 1, i32 low2 = 0,
                       i32 high2 = 1) {
  return ElementBox{
      event, {low0, low1, low2}, {Max(0, high0 - low0), Max(0, high1 - low1), Max(0, high2 - low2)}};
}
EVT_FN ElementBox None() { return ElementBox{0, {0, 0, 0}, {0, 0, 0}}; }

}  // namespace eventide
