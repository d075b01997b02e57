// Names, roles and numbers of things that do not fit, and pages that no pool has.
#pragma once

#include "tests/core/unsound/case.h"

namespace eventide::unsound {

inline std::vector<Case> NameCases() {
  const char* names = "duplicate names";
  const char* roles = "tensors written or read against their role";
  const char* arity = "calls with the wrong number of things";
  return {
      {names,
       "symbols",
       [] {
         Base b;
         b.g.AddSymbol("rows", 0, 1);
         b.Produce();
         return b.g;
       },
       {"two symbols", "rows"}},
      {names,
       "tensors",
       [] {
         Base b;
         b.Scratch("x", {1});
         b.Produce();
         return b.g;
       },
       {"two tensors", "x"}},
      {names,
       "events",
       [] {
         Base b;
         b.g.AddEvents("e", {1});
         b.g.AddEvents("e", {1});
         b.Produce();
         return b.g;
       },
       {"two events", "e"}},
      {names,
       "grids",
       [] {
         Base b;
         b.Produce();
         b.Produce();
         return b.g;
       },
       {"two grids", "produce"}},
      {names,
       "sections",
       [] {
         Base b;
         b.Produce();
         b.g.BeginSection("main", 2);
         return b.g;
       },
       {"two sections", "main"}},
      {names,
       "no name",
       [] {
         Base b;
         b.Produce("");
         return b.g;
       },
       {"a grid has no name"}},
      {roles,
       "a weight is written",
       [] {
         Base b;
         TensorId w = b.g.AddTensor("w", DType::kI32, {1}, TensorRole::kWeight);
         b.g.Call<Mix0>("work", {w}, {}, {1});
         return b.g;
       },
       {"grid work writes tensor w", "weights are constant"}},
      {roles,
       "an input is written",
       [] {
         Base b;
         b.g.Call<Mix0>("work", {b.in}, {}, {1});
         return b.g;
       },
       {"grid work writes tensor in", "host"}},
      {roles,
       "scratch that nobody writes",
       [] {
         Base b;
         b.Consume();
         return b.g;
       },
       {"grid consume reads tensor x", "nobody writes"}},
      {roles,
       "scratch that is written afterwards",
       [] {
         Base b;
         EventId read = b.g.AddEvents("read", {b.rows});
         b.Consume().Notify(read, {At(0)});
         b.Produce().Wait(read, {At(0)});
         return b.g;
       },
       {"grid consume", "reads tensor x", "no event path from any grid that writes it (produce)"}},
      {roles,
       "one layer early",
       [] {
         Base b;
         EventId done = b.g.AddEvents("done", {4});
         TensorId s = b.Scratch("s", {4, 1});
         b.g.Call<Mix0>("start", {Operand(s, Expr(0))}, {}, {1}).Notify(done, {0});
         b.g.BeginSection("layers", 3);
         b.g.Call<Mix1>("work", {Operand(s, Layer() + 1), b.Scratch("t", {3, 1})}, {}, {1})
             .Wait(done, {Layer()});
         b.g.Call<Mix1>("next", {Operand(s, Layer()), Operand(s, Layer() + 1)}, {}, {1})
             .Wait(done, {Layer()})
             .Notify(done, {Layer() + 1});
         return b.g;
       },
       {"grid work", "reads tensor s before the first write", "next"}},
      {arity,
       "an operand too few",
       [] {
         Base b;
         b.g.Call<Mix1>("work", {b.x}, {}, {1});
         return b.g;
       },
       {"grid work", "takes 2 operands, 1"}},
      {arity,
       "an operand too many",
       [] {
         Base b;
         b.g.Call<Mix0>("work", {b.x, b.y}, {}, {1});
         return b.g;
       },
       {"grid work", "takes 1 operands, 2"}},
      {arity,
       "an unknown operand",
       [] {
         Base b;
         b.g.Call<Mix0>("work", {TensorId{77}}, {}, {1});
         return b.g;
       },
       {"grid work", "operand y", "no tensor"}},
      {arity,
       "no extent",
       [] {
         Base b;
         b.g.Call<Mix0>("work", {b.x}, {}, {});
         return b.g;
       },
       {"grid work", "0 extents"}},
      {arity,
       "four extents",
       [] {
         Base b;
         b.g.Call<Mix0>("work", {b.x}, {}, {1, 1, 1, 1});
         return b.g;
       },
       {"grid work", "4 extents"}},
      {arity,
       "an event with five dims",
       [] {
         Base b;
         b.g.AddEvents("e", {1, 1, 1, 1, 1});
         b.Produce();
         return b.g;
       },
       {"event e", "5 dims"}},
      {arity,
       "an edge with a dim too few",
       [] {
         Base b;
         EventId e = b.g.AddEvents("e", {2, b.rows});
         b.Produce().Notify(e, {At(0)});
         return b.g;
       },
       {"grid produce notifies event e with 1 indices", "2 dims"}},
      {arity,
       "an edge to no event",
       [] {
         Base b;
         b.Produce().Notify(EventId{9}, {At(0)});
         return b.g;
       },
       {"grid produce notifies an event that this graph does not have"}},
      {arity,
       "a graph without grids",
       [] {
         Base b;
         return b.g;
       },
       {"graph unsound has no grids"}},
      {arity,
       "a section without layers",
       [] {
         Base b;
         b.g.BeginSection("none", 0);
         b.Produce();
         return b.g;
       },
       {"section none", "0 layers"}},
      {arity,
       "a region with more dims than the tensor",
       [] {
         Base b;
         b.g.Call<Mix0>("work", {Operand(b.x).Region({0, 0})}, {}, {1});
         return b.g;
       },
       {"grid work", "region in tensor x"}},
  };
}

inline std::vector<Case> FloorCases() {
  const char* kind = "page floors above the pool";
  return {
      {kind,
       "one op",
       [] {
         Base b;
         b.g.Call<FloorOp>("work", {b.x}, {}, {1});
         return b.g;
       },
       {"grid work (op floor_op)", "9 exceed the pool of 8"},
       8},
      {kind,
       "two ops together",
       [] {
         Base b;
         b.g.Call<FloorOp>("work", {b.x}, {}, {1});
         b.g.Call<StreamOp>("stream", {b.y}, {}, {1});
         return b.g;
       },
       {"grid stream (op stream_op) needs 9", "grid work (op floor_op) needs 4",
        "13 exceed the pool of 12"},
       12},
      {kind,
       "a negative floor",
       [] {
         Base b;
         b.g.Call<NegativeFloorOp>("work", {b.x}, {}, {1});
         return b.g;
       },
       {"grid work", "negative page floor"}},
  };
}

}  // namespace eventide::unsound
