// Targets, gates and numbering of small graphs, by hand.
#include "core/names.h"
#include "core/program.h"
#include "tests/support/test.h"
#include "tests/support/toy_ops.h"

namespace eventide {
namespace {

std::string Target(const Program& program, int event) {
  return ExprText({&program.symbols, &program.tensors, 'e'}, program.events[event].target);
}

TEST_CASE("the target of a tiled edge counts the tasks of the tile") {
  Graph g("pair");
  Expr rows = g.AddSymbol("rows", 1, 64);
  TensorId x = g.AddTensor("x", DType::kI32, {rows}, TensorRole::kInput);
  TensorId y = g.AddTensor("y", DType::kI32, {rows}, TensorRole::kScratch);
  TensorId z = g.AddTensor("z", DType::kI32, {CeilDiv(rows, 4)}, TensorRole::kOutput);
  EventId done = g.AddEvents("done", {CeilDiv(rows, 4)});
  g.Call<Mix1>("scale", {x, Operand(y).Region({At(0)})}, {}, {rows}).Notify(done, {At(0) / 4});
  g.Call<Mix1>("sum", {Operand(y).Region({IndexRange(At(0) * 4, Min(At(0) * 4 + 4, rows))}), z}, {},
               {CeilDiv(rows, 4)})
      .Wait(done, {At(0)});
  absl::StatusOr<Program> program = Lower(g);
  INFO(program.status().ToString());
  REQUIRE(program.ok());
  CHECK(Target(*program, 0) == "min(e0 * 4 + 4, rows) - e0 * 4");
}

}  // namespace
}  // namespace eventide
