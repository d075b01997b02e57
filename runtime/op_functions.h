// The parts of one op as plain functions of a worker of type W. Includes nothing of the standard
// library: it is compiled once per instruction set, and an inline function of std:: compiled for
// one of them could end up being everybody's.
#pragma once

#include "device/dispatch.h"

namespace eventide {

template <class W>
struct OpFunctions {
  using Part = void (*)(W&, const StepView&, const Node&, const Coord&);
  Part stream = nullptr;  // may be absent
  Part input = nullptr;   // may be absent
  Part compute = nullptr;
};

// The parts of Op for storage type T as functions of W, which is Worker or a base of it. Everything
// the parts call is a template over Worker or always inlined, so that each instruction set's Worker
// has its own code.
template <class Op, class T, class Worker, class W>
struct OpParts {
  static void Stream(W& w, const StepView& step, const Node& node, const Coord& at) {
    CallStream<Op, T>(static_cast<Worker&>(w), step, node, at, ParamsOf<Op>(node));
  }
  static void Input(W& w, const StepView& step, const Node& node, const Coord& at) {
    CallInput<Op, T>(static_cast<Worker&>(w), step, node, at, ParamsOf<Op>(node));
  }
  static void Compute(W& w, const StepView& step, const Node& node, const Coord& at) {
    CallCompute<Op, T>(static_cast<Worker&>(w), step, node, at, ParamsOf<Op>(node));
  }
  static constexpr OpFunctions<W> Functions() {
    OpFunctions<W> functions;
    if constexpr (OpHasStream<Op, T, Worker>) functions.stream = &Stream;
    if constexpr (OpHasInput<Op, T, Worker>) functions.input = &Input;
    functions.compute = &Compute;
    return functions;
  }
};

// Adds all storage types of an op. A plain function of one op and one instruction set, so that the
// table itself (std::map) is only ever compiled for the baseline: `sink` does the adding.
template <class W>
using OpSink = void (*)(void* table, const char* name, int variant,
                        const OpFunctions<W>& functions);

template <class Op, class Worker, class W>
void SinkOp(void* table, OpSink<W> sink) {
  sink(table, Op::kInfo.name, Storage<BF16>::kVariant, OpParts<Op, BF16, Worker, W>::Functions());
  sink(table, Op::kInfo.name, Storage<F16>::kVariant, OpParts<Op, F16, Worker, W>::Functions());
  sink(table, Op::kInfo.name, Storage<float>::kVariant, OpParts<Op, float, Worker, W>::Functions());
}

}  // namespace eventide
