// Indices, extents and sizes that leave their bounds for some value of a symbol.
#pragma once

#include "tests/core/unsound/case.h"

namespace eventide::unsound {

inline std::vector<Case> BoundsCases() {
  const char* kind = "an index out of bounds";
  return {
      {kind,
       "a wait one behind the end",
       [] {
         Base b;
         EventId done = b.g.AddEvents("done", {b.rows});
         b.Produce().Notify(done, {At(0)});
         b.Consume().Wait(done, {At(0) + 1});
         return b.g;
       },
       {"grid consume waits on event done out of bounds", "rows = 1"}},
      {kind,
       "a notify one behind the end",
       [] {
         Base b;
         EventId done = b.g.AddEvents("done", {b.rows});
         b.Produce().Notify(done, {At(0) + 1});
         b.Consume().Wait(done, {At(0)});
         return b.g;
       },
       {"grid produce notifies event done out of bounds", "rows = 1"}},
      {kind,
       "a negative index",
       [] {
         Base b;
         EventId done = b.g.AddEvents("done", {b.rows});
         b.Produce().Notify(done, {At(0)});
         b.Consume().Wait(done, {At(0) - 1});
         return b.g;
       },
       {"grid consume", "event done out of bounds", "[-1, 0)", "rows = 1"}},
      {kind,
       "a fixed shape that nine rows leave",
       [] {
         Base b;
         EventId done = b.g.AddEvents("done", {2});
         b.Produce().Notify(done, {At(0) / 4});
         b.g.Call<Mix1>("consume", {b.x, b.out}, {}, {1}).Wait(done, {IndexRange(0, 2)});
         return b.g;
       },
       {"grid produce", "event done", "rows = 9"}},
      {kind,
       "a range that ends behind the shape",
       [] {
         Base b;
         EventId done = b.g.AddEvents("done", {b.rows});
         b.Produce().Notify(done, {At(0)});
         b.g.Call<Mix1>("consume", {b.x, b.out}, {}, {1}).Wait(done, {IndexRange(0, b.rows + 1)});
         return b.g;
       },
       {"grid consume", "event done out of bounds", "rows = 0"}},
      {kind,
       "a range of negative length",
       [] {
         Base b;
         EventId done = b.g.AddEvents("done", {b.rows});
         b.Produce().Notify(done, {At(0)});
         b.g.Call<Mix1>("consume", {b.x, b.out}, {}, {1}).Wait(done, {IndexRange(2, b.rows)});
         return b.g;
       },
       {"grid consume", "event done", "[2, 0)", "rows = 0"}},
      {kind,
       "the layer after the last",
       [] {
         Base b;
         EventId done = b.g.AddEvents("done", {3});
         b.g.BeginSection("layers", 3);
         b.g.Call<Mix0>("work", {b.Scratch("s", {3, 1})}, {}, {1}).Notify(done, {Layer() + 1});
         return b.g;
       },
       {"grid work notifies event done out of bounds", "layer 2"}},
      {kind,
       "the layer before the first",
       [] {
         Base b;
         EventId done = b.g.AddEvents("done", {3});
         b.g.BeginSection("layers", 3);
         b.g.Call<Mix0>("work", {b.Scratch("s", {3, 1})}, {}, {1})
             .Notify(done, {Layer()})
             .Wait(done, {Layer() - 1});
         return b.g;
       },
       {"grid work waits on event done out of bounds", "layer 0"}},
      {kind,
       "the layer index of a tensor",
       [] {
         Base b;
         b.g.BeginSection("layers", 3);
         b.g.Call<Mix0>("work", {Operand(b.Scratch("s", {3, 1}), Layer() + 1)}, {}, {1});
         return b.g;
       },
       {"grid work", "layer index", "tensor s", "out of range"}},
      {kind,
       "a fixed layer index of a tensor",
       [] {
         Base b;
         b.g.Call<Mix0>("work", {Operand(b.Scratch("s", {3, 1}), Expr(3))}, {}, {1});
         return b.g;
       },
       {"grid work", "layer index 3", "tensor s", "there are 3"}},
  };
}

inline std::vector<Case> SizeCases() {
  const char* sizes = "extents, shapes and values beyond their limits";
  const char* leaves = "leaves out of place";
  return {
      {sizes,
       "a negative extent",
       [] {
         Base b;
         b.g.Call<Mix0>("work", {b.x}, {}, {b.rows - 1});
         return b.g;
       },
       {"grid work", "rows - 1", "may be negative"}},
      {sizes,
       "more tasks than 31 bits count",
       [] {
         Base b;
         b.g.Call<Mix0>("work", {b.x}, {}, {65536, 65536});
         return b.g;
       },
       {"grid work", "4294967296 tasks"}},
      {sizes,
       "a negative shape",
       [] {
         Base b;
         b.g.AddEvents("e", {b.rows - 5});
         b.Produce();
         return b.g;
       },
       {"event e", "rows - 5", "may be negative"}},
      {sizes,
       "too many event elements",
       [] {
         Base b;
         b.g.AddEvents("e", {b.rows, 65536, 1024});
         b.Produce();
         return b.g;
       },
       {"event e", "2^31"}},
      {sizes,
       "a value that leaves 32 bits",
       [] {
         Base b;
         b.g.Call<Mix0>("work", {b.x}, {}, {Min(b.rows * 65536 * 1024, 8)});
         return b.g;
       },
       {"grid work", "4294967296", "32 bits"}},
      {sizes,
       "a divisor that may be zero",
       [] {
         Base b;
         b.g.Call<Mix0>("work", {b.x}, {}, {Expr(64) / b.rows});
         return b.g;
       },
       {"grid work", "divides by rows", "zero"}},
      {sizes,
       "a remainder of zero",
       [] {
         Base b;
         b.g.Call<Mix0>("work", {b.x}, {}, {Expr(64) % b.rows});
         return b.g;
       },
       {"grid work", "divides by rows"}},
      {sizes,
       "an expression too deep",
       [] {
         Base b;
         Expr deep = b.rows;
         for (int i = 0; i < 100; ++i) deep = Min(Max(deep, i % 7), b.rows + i % 3);
         b.g.Call<Mix0>("work", {b.x}, {}, {deep});
         return b.g;
       },
       {"grid work", "nested deeper"}},
      {sizes,
       "a symbol with an empty range",
       [] {
         Base b;
         b.g.AddSymbol("s", 3, 2);
         b.Produce();
         return b.g;
       },
       {"symbol s", "empty"}},
      {sizes,
       "a symbol below zero",
       [] {
         Base b;
         b.g.AddSymbol("s", -1, 2);
         b.Produce();
         return b.g;
       },
       {"symbol s", "[0, 2^31)"}},
      {sizes,
       "too many symbols",
       [] {
         Base b;
         for (int i = 0; i < kMaxSymbols; ++i) b.g.AddSymbol(absl::StrCat("s", i), 0, 1);
         b.Produce();
         return b.g;
       },
       {"symbol s15", "at most 16"}},
      {leaves,
       "a coordinate that the grid lacks",
       [] {
         Base b;
         EventId e = b.g.AddEvents("e", {b.rows});
         b.Produce().Notify(e, {At(1)});
         return b.g;
       },
       {"grid produce", "t1", "coordinate 1"}},
      {leaves,
       "a coordinate in an extent",
       [] {
         Base b;
         b.g.Call<Mix0>("work", {b.x}, {}, {4, At(0) + 1});
         return b.g;
       },
       {"grid work", "coordinate 0"}},
      {leaves,
       "the layer in a shape",
       [] {
         Base b;
         b.g.AddEvents("e", {Layer() + 1});
         b.Produce();
         return b.g;
       },
       {"event e", "uses the layer"}},
      {leaves,
       "a device value in a shape",
       [] {
         Base b;
         EventId known = b.g.AddEvents("known", {1});
         TensorId n = b.g.AddPublished("n", {1}, 0, 8, known, {0});
         b.g.AddEvents("e", {b.g.Load(n, {0})});
         b.g.Call<Mix0>("count", {n}, {}, {1}).Notify(known, {0});
         return b.g;
       },
       {"event e", "device-resident"}},
      {leaves,
       "a coordinate in a dim",
       [] {
         Base b;
         b.g.Dim(b.rows + At(0));
         b.Produce();
         return b.g;
       },
       {"a dim", "once per step"}},
      {leaves,
       "a symbol of another graph",
       [] {
         Base b;
         b.g.Call<Mix0>("work", {b.x}, {}, {Expr::Symbol(5)});
         return b.g;
       },
       {"grid work", "symbol that this graph does not have"}},
  };
}

}  // namespace eventide::unsound
