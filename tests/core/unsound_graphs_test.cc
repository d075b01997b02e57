// Graphs that could hang, race, or read what is not there, one line of reason each. Verify must
// refuse every one of them with words that name what is wrong and where. Longer than 400 lines
// because it is one table: a graph that was ever wrongly accepted gets a row.
#include <functional>
#include <set>

#include "core/verify.h"
#include "tests/support/sequential.h"
#include "tests/support/test.h"
#include "tests/support/toy_ops.h"

namespace eventide {
namespace {

struct FloorOp {
  static constexpr OpInfo kInfo = {"floor_op", 1, {Out("y")}, 5, 4};
  using Params = ToyParams;
};
struct StreamOp {
  static constexpr OpInfo kInfo = {"stream_op", 1, {Out("y")}, 9, 0};
  using Params = ToyParams;
};
struct NegativeFloorOp {
  static constexpr OpInfo kInfo = {"negative_floor", 1, {Out("y")}, -1, 0};
  using Params = ToyParams;
};

// What most rows start from: rows in [0, 64], tensors and events by need.
struct Base {
  Graph g{"unsound"};
  Expr rows = g.AddSymbol("rows", 0, 64);
  TensorId in = g.AddTensor("in", DType::kI32, {rows}, TensorRole::kInput);
  TensorId x = g.AddTensor("x", DType::kI32, {rows}, TensorRole::kScratch);
  TensorId y = g.AddTensor("y", DType::kI32, {rows}, TensorRole::kScratch);
  TensorId out = g.AddTensor("out", DType::kI32, {rows}, TensorRole::kOutput);

  TensorId Scratch(const std::string& name, std::vector<Expr> shape) {
    return g.AddTensor(name, DType::kI32, std::move(shape), TensorRole::kScratch);
  }
  static Operand Row(TensorId tensor) { return Operand(tensor).Region({At(0)}); }
  static Operand Tile(TensorId tensor, const Expr& rows) {
    return Operand(tensor).Region({IndexRange(At(0) * 4, Min(At(0) * 4 + 4, rows))});
  }
  // in -> x, one task a row.
  GridHandle Produce(const char* name = "produce") {
    return g.Call<Mix1>(name, {Row(in), Row(x)}, {}, {rows});
  }
  // x -> out, one task a row.
  GridHandle Consume(const char* name = "consume") {
    return g.Call<Mix1>(name, {Row(x), Row(out)}, {}, {rows});
  }
};

struct Case {
  const char* kind;
  const char* name;
  std::function<Graph()> build;
  std::vector<std::string> words;  // all in the message
  int pool_pages = 0;
};

std::vector<Case> WaitCases() {
  const char* kind = "a wait that can never fire";
  return {
      {kind,
       "an event without notifiers",
       [] {
         Base b;
         EventId done = b.g.AddEvents("done", {b.rows});
         b.Produce();
         b.Consume().Wait(done, {At(0)});
         return b.g;
       },
       {"grid consume", "event done", "notified by nobody", "never fire"}},
      {kind,
       "an element that no task notifies",
       [] {
         Base b;
         EventId done = b.g.AddEvents("done", {2});
         b.g.Call<Mix0>("one", {b.Scratch("s", {1})}, {}, {1}).Notify(done, {0});
         b.g.Call<Mix0>("two", {b.Scratch("t", {1})}, {}, {1}).Wait(done, {1});
         return b.g;
       },
       {"grid two", "event done[1]", "notified by nobody"}},
      {kind,
       "only even elements are notified",
       [] {
         Base b;
         EventId done = b.g.AddEvents("done", {b.rows * 2 + 1, 1});
         b.Produce().Notify(done, {At(0) * 2, 0});
         b.Consume().Wait(done, {At(0), 0});
         return b.g;
       },
       {"grid consume", "event done[1, 0]", "rows = 2"}},
      {kind,
       "the wait is on another layer's dim",
       [] {
         Base b;
         EventId done = b.g.AddEvents("done", {3, b.rows});
         b.Produce().Notify(done, {1, At(0)});
         b.Consume().Wait(done, {2, At(0)});
         return b.g;
       },
       {"grid consume", "event done[2, 0]", "rows = 1"}},
      {kind,
       "a range reaches past what is notified",
       [] {
         Base b;
         EventId done = b.g.AddEvents("done", {3, b.rows});
         b.Produce().Notify(done, {IndexRange(0, 2), At(0)});
         b.Consume().Wait(done, {IndexRange(0, 3), At(0)});
         return b.g;
       },
       {"grid consume", "event done[2, 0]", "rows = 1"}},
  };
}

std::vector<Case> BoundsCases() {
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

std::vector<Case> ReadCases() {
  const char* kind = "a read with no event path from the write";
  return {
      {kind,
       "the wait is missing",
       [] {
         Base b;
         b.Produce();
         b.Consume();
         return b.g;
       },
       {"grid consume", "reads tensor x", "no event path", "produce"}},
      {kind,
       "the wait is on another tile",
       [] {
         Base b;
         EventId done = b.g.AddEvents("done", {CeilDiv(b.rows, 4)});
         b.Produce().Notify(done, {At(0) / 4});
         b.Consume().Wait(done, {At(0) / 8});
         return b.g;
       },
       {"grid consume", "reads tensor x", "no event path", "produce", "rows = 5"}},
      {kind,
       "a whole tensor is read after one tile",
       [] {
         Base b;
         EventId done = b.g.AddEvents("done", {CeilDiv(b.rows, 4)});
         b.Produce().Notify(done, {At(0) / 4});
         b.g.Call<Mix1>("consume", {b.x, b.Row(b.out)}, {}, {b.rows}).Wait(done, {At(0) / 4});
         return b.g;
       },
       {"grid consume", "reads tensor x", "no event path", "Region", "rows = 5"}},
      {kind,
       "a neighbour's row is read, too",
       [] {
         Base b;
         EventId done = b.g.AddEvents("done", {b.rows});
         b.Produce().Notify(done, {At(0)});
         b.g.Call<Mix1>("consume",
                        {Operand(b.x).Region({IndexRange(At(0), At(0) + 2)}), b.Row(b.out)}, {},
                        {b.rows})
             .Wait(done, {At(0)});
         return b.g;
       },
       {"grid consume", "reads tensor x", "produce", "rows = 2"}},
      {kind,
       "one of two writers is not waited for",
       [] {
         Base b;
         EventId done = b.g.AddEvents("done", {2});
         TensorId s = b.Scratch("s", {2});
         b.g.Call<Mix0>("left", {Operand(s).Region({0})}, {}, {1}).Notify(done, {0});
         b.g.Call<Mix0>("right", {Operand(s).Region({1})}, {}, {1}).Notify(done, {1});
         b.g.Call<Mix1>("consume", {s, b.Scratch("t", {1})}, {}, {1}).Wait(done, {0});
         return b.g;
       },
       {"grid consume", "reads tensor s", "right"}},
      {kind,
       "the layer before is not waited for",
       [] {
         Base b;
         EventId done = b.g.AddEvents("done", {3});
         TensorId s = b.Scratch("s", {4, 1});
         b.g.Call<Mix0>("start", {Operand(s, Expr(0))}, {}, {1});
         b.g.BeginSection("layers", 3);
         b.g.Call<Mix1>("work", {Operand(s, Layer()), Operand(s, Layer() + 1)}, {}, {1})
             .Notify(done, {Layer()});
         return b.g;
       },
       {"grid work", "reads tensor s", "no event path"}},
      {kind,
       "the last layer is read after the first",
       [] {
         Base b;
         EventId done = b.g.AddEvents("done", {3});
         TensorId s = b.Scratch("s", {3, 1});
         b.g.BeginSection("layers", 3);
         b.g.Call<Mix0>("work", {s}, {}, {1}).Notify(done, {Layer()});
         b.g.BeginSection("end", 1);
         b.g.Call<Mix1>("head", {Operand(s, Expr(2)), b.Scratch("t", {1})}, {}, {1})
             .Wait(done, {0});
         return b.g;
       },
       {"grid head", "reads tensor s", "work (layer 2"}},
      {kind,
       "two tasks on one worker are no path",
       [] {
         Base b;
         EventId done = b.g.AddEvents("done", {b.rows});
         b.Produce().Notify(done, {At(0)});
         b.g.Call<Mix1>("middle", {b.Row(b.in), b.Row(b.y)}, {}, {b.rows}).Wait(done, {At(0)});
         b.g.Call<Mix1>("consume", {b.Row(b.y), b.Row(b.out)}, {}, {b.rows}).Wait(done, {At(0)});
         return b.g;
       },
       {"grid consume", "reads tensor y", "middle"}},
      {kind,
       "an empty grid in between breaks the chain",
       [] {
         Base b;
         TensorId s = b.Scratch("s", {1});
         EventId first = b.g.AddEvents("first", {1}), done = b.g.AddEvents("done", {b.rows});
         b.g.Call<Mix0>("first", {s}, {}, {1}).Notify(first, {0});
         b.Produce().Wait(first, {0}).Notify(done, {At(0)});
         b.g.Call<Mix1>("consume", {s, b.Scratch("t", {1})}, {}, {1})
             .Wait(done, {IndexRange(0, b.rows)});
         return b.g;
       },
       {"grid consume", "reads tensor s", "first", "rows = 0"}},
      {kind,
       "state written in this step",
       [] {
         Base b;
         TensorId kv = b.g.AddTensor("kv", DType::kI32, {b.rows}, TensorRole::kState);
         b.g.Call<Mix1>("append", {b.Row(b.in), b.Row(kv)}, {}, {b.rows});
         b.g.Call<Mix1>("attend", {kv, b.Row(b.out)}, {}, {b.rows});
         return b.g;
       },
       {"grid attend", "reads tensor kv", "append", "rows = 1"}},
  };
}

std::vector<Case> OvertakeCases() {
  const char* war = "a write that may overtake a read";
  const char* waw = "a write that may overtake a write";
  return {
      {war,
       "scratch that layers share",
       [] {
         Base b;
         EventId up = b.g.AddEvents("up_done", {3, b.rows}),
                 start = b.g.AddEvents("start", {b.rows});
         b.Produce().Notify(start, {At(0)});
         b.g.BeginSection("layers", 3);
         b.g.Call<Mix1>("up", {b.Row(b.x), b.Row(b.y)}, {}, {b.rows})
             .Wait(start, {At(0)})
             .Notify(up, {Layer(), At(0)});
         b.g.Call<Mix1>("down",
                        {b.Row(b.y), Operand(b.Scratch("z", {3, b.rows}), Layer()).Region({At(0)})},
                        {}, {b.rows})
             .Wait(up, {Layer(), At(0)});
         return b.g;
       },
       {"grid up (layer 1", "writes tensor y", "overtake", "rows = 1"}},
      {war,
       "a later grid reuses what is still read",
       [] {
         Base b;
         EventId done = b.g.AddEvents("done", {b.rows});
         b.Produce().Notify(done, {At(0)});
         b.Consume().Wait(done, {At(0)});
         b.g.Call<Mix1>("again", {b.Row(b.in), b.Row(b.x)}, {}, {b.rows}).Wait(done, {At(0)});
         return b.g;
       },
       {"grid again", "writes tensor x", "overtake the earlier read", "consume"}},
      {war,
       "the reader of the neighbouring row",
       [] {
         Base b;
         EventId done = b.g.AddEvents("done", {1}), read = b.g.AddEvents("read", {b.rows});
         b.Produce().Notify(done, {0});
         b.g.Call<Mix1>("consume",
                        {Operand(b.x).Region({IndexRange(At(0), At(0) + 2)}), b.Row(b.out)}, {},
                        {b.rows})
             .Wait(done, {0})
             .Notify(read, {At(0)});
         b.g.Call<Mix1>("again", {b.Row(b.in), b.Row(b.x)}, {}, {b.rows}).Wait(read, {At(0)});
         return b.g;
       },
       {"grid again", "writes tensor x", "overtake the earlier read", "rows = 2"}},
      {waw,
       "two writers of one tensor",
       [] {
         Base b;
         b.Produce();
         b.Produce("again");
         return b.g;
       },
       {"grid again", "writes tensor x", "overtake the earlier write", "produce", "rows = 1"}},
      {waw,
       "two layers of one writer",
       [] {
         Base b;
         b.g.BeginSection("layers", 2);
         b.Produce();
         return b.g;
       },
       {"grid produce (layer 1", "writes tensor x", "overtake the earlier write", "rows = 1"}},
      {waw,
       "the output is written twice",
       [] {
         Base b;
         EventId done = b.g.AddEvents("done", {CeilDiv(b.rows, 4)});
         b.Produce().Notify(done, {At(0) / 4});
         b.Consume().Wait(done, {At(0) / 4});
         b.g.Call<Mix1>("last", {b.Row(b.in), b.Tile(b.out, b.rows)}, {}, {CeilDiv(b.rows, 4)})
             .Wait(done, {At(0)});
         return b.g;
       },
       {"grid last", "writes tensor out", "overtake the earlier write", "consume", "rows = 1"}},
  };
}

std::vector<Case> OrderCases() {
  const char* cycle = "a cycle";
  const char* order = "an order that policies deadlock on";
  return {
      {cycle,
       "two grids wait for each other",
       [] {
         Base b;
         EventId ping = b.g.AddEvents("ping", {b.rows}), pong = b.g.AddEvents("pong", {b.rows});
         b.Produce().Wait(pong, {At(0)}).Notify(ping, {At(0)});
         b.Consume().Wait(ping, {At(0)}).Notify(pong, {At(0)});
         return b.g;
       },
       {"grid produce", "event pong[0]", "consume", "cycle", "rows = 1"}},
      {cycle,
       "a grid waits for itself",
       [] {
         Base b;
         EventId self = b.g.AddEvents("self", {b.rows});
         b.Produce().Wait(self, {At(0)}).Notify(self, {At(0)});
         return b.g;
       },
       {"grid produce", "event self[0]", "cycle", "rows = 1"}},
      {cycle,
       "three grids in a circle",
       [] {
         Base b;
         EventId a = b.g.AddEvents("a", {1}), c = b.g.AddEvents("c", {1}),
                 d = b.g.AddEvents("d", {1});
         b.g.Call<Mix0>("one", {b.Scratch("s1", {1})}, {}, {1}).Wait(d, {0}).Notify(a, {0});
         b.g.Call<Mix0>("two", {b.Scratch("s2", {1})}, {}, {1}).Wait(a, {0}).Notify(c, {0});
         b.g.Call<Mix0>("three", {b.Scratch("s3", {1})}, {}, {1}).Wait(c, {0}).Notify(d, {0});
         return b.g;
       },
       {"grid one", "event d[0]", "three", "cycle"}},
      {cycle,
       "tasks of one tile wait for their own tile",
       [] {
         Base b;
         EventId done = b.g.AddEvents("done", {CeilDiv(b.rows, 4)});
         b.Produce().Notify(done, {At(0) / 4}).Wait(done, {At(0) / 4});
         return b.g;
       },
       {"grid produce", "event done[0]", "cycle"}},
      {order,
       "the notifier is called later",
       [] {
         Base b;
         EventId done = b.g.AddEvents("done", {b.rows});
         b.Consume("early").Wait(done, {At(0)});
         b.Produce().Notify(done, {At(0)});
         return b.g;
       },
       {"grid early", "event done[0]", "later grid produce", "rows = 1"}},
      {order,
       "a layer waits for the next one",
       [] {
         Base b;
         EventId done = b.g.AddEvents("done", {4});
         TensorId s = b.Scratch("s", {3, 1});
         b.g.BeginSection("layers", 3);
         b.g.Call<Mix0>("work", {s}, {}, {1}).Notify(done, {Layer()}).Wait(done, {Layer() + 1});
         b.g.BeginSection("end", 1);
         b.g.Call<Mix0>("end", {b.Scratch("t", {1})}, {}, {1}).Notify(done, {3});
         return b.g;
       },
       {"grid work", "event done[1]", "later"}},
      {order,
       "a section waits for a later section",
       [] {
         Base b;
         EventId done = b.g.AddEvents("done", {1});
         b.g.BeginSection("one", 1);
         b.g.Call<Mix0>("first", {b.Scratch("s", {1})}, {}, {1}).Wait(done, {0});
         b.g.BeginSection("two", 1);
         b.g.Call<Mix0>("second", {b.Scratch("t", {1})}, {}, {1}).Notify(done, {0});
         return b.g;
       },
       {"grid first", "event done[0]", "later grid second"}},
      {order,
       "a row waits for the row behind it",
       [] {
         Base b;
         EventId done = b.g.AddEvents("done", {b.rows + 1});
         b.Produce()
             .Notify(done, {At(0)})
             .Wait(done, {IndexRange(At(0) + 1, Min(At(0) + 2, b.rows))});
         return b.g;
       },
       {"grid produce", "later", "rows = 2"}},
      {order,
       "an extent is published by a later grid",
       [] {
         Base b;
         EventId known = b.g.AddEvents("known", {1});
         TensorId n = b.g.AddPublished("n", {1}, 0, 8, known, {0});
         b.g.Call<Mix0>("work", {b.Scratch("s", {8})}, {}, {b.g.Load(n, {0})});
         b.g.Call<Mix0>("count", {n}, {}, {1}).Notify(known, {0});
         return b.g;
       },
       {"event known[0]", "later grid count"}},
  };
}

std::vector<Case> NameCases() {
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

std::vector<Case> SizeCases() {
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

std::vector<Case> TargetCases() {
  const char* kind = "targets without closed form and without counts";
  const auto notify = [](std::vector<Expr> shape, IndexRange index) {
    return [shape, index] {
      Base b;
      EventId e = b.g.AddEvents("e", shape);
      b.g.Call<Mix0>("work", {b.Scratch("s", {4})}, {}, {4, 4}).Notify(e, {index});
      return b.g;
    };
  };
  return {
      {kind,
       "a sum of two coordinates",
       notify({8}, At(0) + At(1)),
       {"event e, notified by grid work", "t0 + t1", "SetCounts"}},
      {kind,
       "a product of two coordinates",
       notify({16}, At(0) * At(1)),
       {"event e", "t0 * t1", "SetCounts"}},
      {kind, "a remainder", notify({4}, At(0) % 4), {"event e", "t0 % 4", "SetCounts"}},
      {kind,
       "a minimum of two coordinates",
       notify({4}, Min(At(0), At(1))),
       {"event e", "min(t0, t1)", "SetCounts"}},
      {kind,
       "a gather without counts",
       [] {
         Base b;
         EventId known = b.g.AddEvents("known", {1}), e = b.g.AddEvents("e", {8});
         TensorId n = b.g.AddPublished("n", {8}, 0, 7, known, {0});
         b.g.Call<Mix0>("count", {n}, {}, {1}).Notify(known, {0});
         b.g.Call<Mix0>("work", {b.Scratch("s", {8})}, {}, {8}).Notify(e, {b.g.Load(n, {At(0)})});
         return b.g;
       },
       {"event e, notified by grid work", "device tensor", "SetCounts"}},
      {kind,
       "an extent that varies by layer, unseen by the event",
       [] {
         Base b;
         EventId e = b.g.AddEvents("e", {1});
         b.g.BeginSection("layers", 3);
         b.g.Call<Mix0>("work", {b.Scratch("s", {3, 4})}, {}, {Layer() + 1}).Notify(e, {0});
         return b.g;
       },
       {"event e", "depends on the layer", "SetCounts"}},
  };
}

std::vector<Case> PublicationCases() {
  const char* kind = "publications that are missing, late or circular";
  return {
      {kind,
       "a load of an ordinary tensor",
       [] {
         Base b;
         b.g.Call<Mix0>("work", {b.y}, {}, {b.g.Load(b.x, {0})});
         return b.g;
       },
       {"tensor x", "no event publishes it", "AddPublished"}},
      {kind,
       "a load with an index too few",
       [] {
         Base b;
         EventId known = b.g.AddEvents("known", {1});
         TensorId n = b.g.AddPublished("n", {2, 2}, 0, 8, known, {0});
         b.g.Call<Mix0>("work", {b.y}, {}, {b.g.Load(n, {0})});
         return b.g;
       },
       {"tensor n", "1 indices", "2 dims"}},
      {kind,
       "an unknown publication event",
       [] {
         Base b;
         b.g.AddPublished("n", {1}, 0, 8, EventId{4}, {0});
         b.Produce();
         return b.g;
       },
       {"tensor n", "event that does not exist"}},
      {kind,
       "a publication with wrong dims",
       [] {
         Base b;
         EventId known = b.g.AddEvents("known", {1});
         b.g.AddPublished("n", {1}, 0, 8, known, {0, 0});
         b.Produce();
         return b.g;
       },
       {"tensor n", "2 indices of event known", "1 dims"}},
      {kind,
       "an empty range of values",
       [] {
         Base b;
         EventId known = b.g.AddEvents("known", {1});
         b.g.AddPublished("n", {1}, 9, 8, known, {0});
         b.Produce();
         return b.g;
       },
       {"tensor n", "[9, 8]", "empty"}},
      {kind,
       "nobody notifies the publication",
       [] {
         Base b;
         EventId known = b.g.AddEvents("known", {1});
         TensorId n = b.g.AddPublished("n", {1}, 0, 8, known, {0});
         b.g.Call<Mix0>("count", {n}, {}, {1});
         return b.g;
       },
       {"tensor n", "event known", "notified by nobody"}},
      {kind,
       "nobody writes what is published",
       [] {
         Base b;
         EventId known = b.g.AddEvents("known", {1});
         b.g.AddPublished("n", {1}, 0, 8, known, {0});
         b.g.Call<Mix0>("count", {b.x}, {}, {1}).Notify(known, {0});
         return b.g;
       },
       {"tensor n", "event known", "no grid writes it"}},
      {kind,
       "another grid publishes than the one that writes",
       [] {
         Base b;
         EventId known = b.g.AddEvents("known", {1});
         TensorId n = b.g.AddPublished("n", {1}, 0, 8, known, {0});
         b.g.Call<Mix0>("count", {n}, {}, {1});
         b.g.Call<Mix0>("other", {b.x}, {}, {1}).Notify(known, {0});
         b.g.Call<Mix0>("work", {b.Scratch("s", {8})}, {}, {b.g.Load(n, {0})});
         return b.g;
       },
       {"tensor n is loaded before its publication", "grid count", "event known"}},
      {kind,
       "its own value says when it is published",
       [] {
         Base b;
         EventId known = b.g.AddEvents("known", {1});
         TensorId n = b.g.AddPublished("n", {1}, 0, 8, known, {0});
         b.g.SetCounts(known, n);
         b.g.Call<Mix0>("count", {n}, {}, {1}).Notify(known, {0});
         b.g.Call<Mix0>("work", {b.Scratch("s", {8})}, {}, {b.g.Load(n, {0})});
         return b.g;
       },
       {"tensor n", "depends on its own values"}},
      {kind,
       "counts that are not published",
       [] {
         Base b;
         EventId e = b.g.AddEvents("e", {b.rows});
         b.g.SetCounts(e, b.x);
         b.Produce();
         return b.g;
       },
       {"event e", "counts x", "AddPublished"}},
      {kind,
       "counts of another shape",
       [] {
         Base b;
         EventId known = b.g.AddEvents("known", {1}), e = b.g.AddEvents("e", {b.rows, 2});
         b.g.SetCounts(e, b.g.AddPublished("n", {64}, 0, 8, known, {0}));
         b.Produce();
         return b.g;
       },
       {"event e has 2 dims", "n have 1"}},
      {kind,
       "extents larger than the event they notify",
       [] {
         Base b;
         EventId known = b.g.AddEvents("known", {1}), e = b.g.AddEvents("e", {8});
         TensorId n = b.g.AddPublished("n", {1}, 0, 9, known, {0});
         b.g.Call<Mix0>("count", {n}, {}, {1}).Notify(known, {0});
         b.g.Call<Mix0>("work", {b.Scratch("s", {16})}, {}, {b.g.Load(n, {0})}).Notify(e, {At(0)});
         return b.g;
       },
       {"grid work", "event e out of bounds", "[8, 9)"}},
      {kind,
       "a load behind the end of its tensor",
       [] {
         Base b;
         EventId known = b.g.AddEvents("known", {1});
         TensorId n = b.g.AddPublished("n", {3}, 0, 9, known, {0});
         b.g.Call<Mix0>("count", {n}, {}, {1}).Notify(known, {0});
         b.g.BeginSection("layers", 4);
         b.g.Call<Mix0>("work", {b.Scratch("s", {4, 16})}, {}, {b.g.Load(n, {Layer()})});
         return b.g;
       },
       {"grid work", "element 3 of tensor n", "which has 3"}},
  };
}

std::vector<Case> FloorCases() {
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

std::vector<Case> AllCases() {
  std::vector<Case> all;
  for (auto cases : {WaitCases, BoundsCases, ReadCases, OvertakeCases, OrderCases, NameCases,
                     SizeCases, TargetCases, PublicationCases, FloorCases}) {
    for (Case& one : cases()) all.push_back(std::move(one));
  }
  return all;
}

TEST_CASE("every unsound graph is refused with words that name the fault") {
  std::set<std::string> kinds;
  const std::vector<Case> cases = AllCases();
  for (const Case& one : cases) {
    kinds.insert(one.kind);
    VerifyOptions options;
    options.pool_pages = one.pool_pages;
    const absl::Status status = Verify(one.build(), options);
    INFO(one.kind << ": " << one.name << "\n  " << status.ToString());
    CHECK(!status.ok());
    for (const std::string& word : one.words) {
      INFO("expected: " << word);
      CHECK(status.message().find(word) != absl::string_view::npos);
    }
  }
  CHECK(cases.size() >= 60);
  CHECK(kinds.size() >= 15);
}

// A dispatch whose counts are off by `error`, or a gather to the wrong group.
absl::Status VerifyCounts(int error, bool wrong_group) {
  Base b;
  EventId known = b.g.AddEvents("known", {1}), done = b.g.AddEvents("done", {4});
  TensorId group = b.g.AddPublished("group", {8}, 0, 3, known, {0});
  TensorId counts = b.g.AddPublished("counts", {4}, 0, 9, known, {0});
  b.g.SetCounts(done, counts);
  b.g.Call<Mix0>("groups", {group}, {}, {1}).Notify(known, {0});
  b.g.Call<Mix0>("counts", {counts}, {}, {1}).Notify(known, {0});
  const Expr at = b.g.Load(group, {At(0)});
  b.g.Call<Mix0>("work", {b.Scratch("s", {8})}, {}, {8})
      .Notify(done, {wrong_group ? Max(at - 1, 0) : at});
  b.g.Call<Mix0>("end", {b.Scratch("t", {4})}, {}, {4}).Wait(done, {At(0)});
  VerifyOptions options;
  options.sample_published = [=](const SymbolValues&, uint64_t) -> PublishedValues {
    return [=](int tensor, int64_t element) -> int64_t {
      if (tensor == group.index) return element % 4;
      return element == 3 ? 2 + error : 2;
    };
  };
  return Verify(b.g, options);
}

TEST_CASE("counts that contradict the arrivals are refused") {
  const absl::Status right = VerifyCounts(0, false);
  INFO(right.ToString());
  CHECK(right.ok());
  const absl::Status never = VerifyCounts(1, false);
  INFO(never.ToString());
  CHECK(never.message().find("event done[3]") != absl::string_view::npos);
  CHECK(never.message().find("never fire") != absl::string_view::npos);
  const absl::Status early = VerifyCounts(-1, false);
  INFO(early.ToString());
  CHECK(early.message().find("fires early") != absl::string_view::npos);
  CHECK(early.message().find("from its counts") != absl::string_view::npos);
  CHECK(!VerifyCounts(0, true).ok());
}

}  // namespace
}  // namespace eventide
