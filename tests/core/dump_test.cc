// Dumps: what people read in inspect, kept as text here.
#include "core/dump.h"

#include "core/verify.h"
#include "tests/support/graphs.h"
#include "tests/support/test.h"

namespace eventide {
namespace {

Graph Small() {
  Graph g("small");
  const Expr rows = g.AddSymbol("rows", 0, 8);
  const TensorId x = g.AddTensor("x", DType::kI32, {3, rows}, TensorRole::kScratch);
  const TensorId out = g.AddTensor("out", DType::kF32, {1}, TensorRole::kOutput);
  const EventId done = g.AddEvents("done", {3, 1});
  g.BeginSection("layers", 3);
  g.Call<Mix0>("fill", {Operand(x).Region({At(0)})}, {}, {rows}).Notify(done, {Layer(), 0});
  g.BeginSection("end", 1);
  g.Call<Mix1>("sum", {x, out}, {}, {1}).Wait(done, {IndexRange(0, 3), 0});
  return g;
}

TEST_CASE("a graph is dumped as it was declared") {
  CHECK(DumpText(Small()) == R"(graph small
symbol rows in [0, 8]
tensor x int32 [3, rows] scratch
tensor out float32 [1] output
event done [3, 1]
section layers x 3
  grid fill = mix0.0 [rows]
    out y = x region [t0]
    notify done[layer, 0]
section end x 1
  grid sum = mix1.0 [1]
    in x = x
    out y = out
    wait done[0:3, 0]
)");
}

TEST_CASE("a program is dumped with targets, gates and numbers") {
  const absl::StatusOr<Program> program = Lower(Small());
  INFO(program.status().ToString());
  REQUIRE(program.ok());
  CHECK(DumpText(*program) == R"(program small
symbol rows in [0, 8]
tensor x int32 [3, rows] scratch
tensor out float32 [1] output
event done [3, 1] at 0..3 target max(rows, 1) (gated)
kind 0 = mix0.0
kind 1 = mix1.0
section layers x 3
  grid fill = kind 0 node 0 [rows]
    out y = x of layer layer region [t0]
    notify done[layer, 0]
  gate fill.gate
    notify done[layer, 0]
section end x 1
  grid sum = kind 1 node 1 [1]
    in x = x
    out y = out
    wait done[0:3, 0]
bank: 3 event elements, 7 ticket counters, 320 bytes
)");
}

TEST_CASE("DOT names every grid, event and edge") {
  const absl::StatusOr<Program> program = Lower(Small());
  REQUIRE(program.ok());
  CHECK(DumpDot(*program) == R"x(digraph "small" {
  rankdir=LR;
  "event done" [shape=ellipse, label="done[3, 1] target max(rows, 1)"];
  subgraph cluster_0 {
    label="layers x 3";
    "grid fill" [shape=box, label="fill[rows]"];
    "grid fill.gate" [shape=diamond, label="fill.gate[1]"];
  }
  subgraph cluster_1 {
    label="end x 1";
    "grid sum" [shape=box, label="sum[1]"];
  }
  "grid fill" -> "event done" [label="[layer, 0]"];
  "grid fill.gate" -> "event done" [label="[layer, 0]"];
  "event done" -> "grid sum" [label="[0:3, 0]"];
}
)x");
}

TEST_CASE("device-resident values and their publications are dumped") {
  const std::string text = DumpText(*Lower(ToySparseAttentionGraph()));
  INFO(text);
  CHECK(text.find("tensor total int32 [1] scratch in [0, 96] published by selected[0]") !=
        std::string::npos);
  CHECK(text.find("event merged [blocks] at 49..73 target max(counts[e0], 1) (gated)") !=
        std::string::npos);
  CHECK(text.find("extents need selected[0]") != std::string::npos);
  CHECK(text.find("wait k_done[second[t0]]") != std::string::npos);
}

}  // namespace
}  // namespace eventide
