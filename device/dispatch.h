// Calls a part of an op for one task: Op::Part<T>(worker, task), with T the storage type that the grid's
// variant names (device/dtype.h). Stream and Input are optional and found here, by concept.
#pragma once

#include "device/dtype.h"
#include "device/op.h"

namespace eventide {

template <class Op, class T, class W>
concept OpHasStream = requires(W& w, const Task<typename Op::Params>& task) {
  Op::template Stream<T>(w, task);
};
template <class Op, class T, class W>
concept OpHasInput = requires(W& w, const Task<typename Op::Params>& task) {
  Op::template Input<T>(w, task);
};

// What Compute needs that can be worked out before the task begins. Where another role does so (W::kPrepares), it calls
// CallCompute for it.
template <class Op, class T, class W>
concept OpHasPrepare = requires(W& w, const Task<typename Op::Params>& task) {
  Op::template Prepare<T>(w, task);
};
template <class W>
concept Prepares = requires { requires W::kPrepares; };
// Compute and Input find what Prepare made.
template <class W>
concept Follows = requires { requires W::kFollows; };

template <class Op>
EVT_FN const typename Op::Params& ParamsOf(const Node& node) {
  static_assert(sizeof(typename Op::Params) <= kMaxParamBytes, "parameters exceed the node record");
  return *reinterpret_cast<const typename Op::Params*>(node.params);
}

template <class Op, class T, class W>
EVT_FN void CallStream(W& w, const StepView& step, const Node& node, const Coord& at,
                      const typename Op::Params& params) {
  if constexpr (OpHasStream<Op, T, W>) {
    Op::template Stream<T>(w, Task<typename Op::Params>{step, node, at, params});
  }
}
template <class Op, class T, class W>
EVT_FN void CallInput(W& w, const StepView& step, const Node& node, const Coord& at,
                      const typename Op::Params& params) {
  if constexpr (OpHasInput<Op, T, W>) {
    Op::template Input<T>(w, Task<typename Op::Params>{step, node, at, params});
  }
}
template <class Op, class T, class W>
EVT_FN void CallCompute(W& w, const StepView& step, const Node& node, const Coord& at,
                      const typename Op::Params& params) {
  if constexpr (!Prepares<W>) {
    Op::template Compute<T>(w, Task<typename Op::Params>{step, node, at, params});
  } else if constexpr (OpHasPrepare<Op, T, W>) {
    Op::template Prepare<T>(w, Task<typename Op::Params>{step, node, at, params});
  }
}

}  // namespace eventide
