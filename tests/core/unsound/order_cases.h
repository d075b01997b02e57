// Waits that are missing, too late or in a circle: graphs that could race or hang.
#pragma once

#include "tests/core/unsound/case.h"

namespace eventide::unsound {

inline std::vector<Case> WaitCases() {
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

inline std::vector<Case> ReadCases() {
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

inline std::vector<Case> OvertakeCases() {
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

inline std::vector<Case> OrderCases() {
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

}  // namespace eventide::unsound
