// A dense model's graph as start-up sees it: no gates, short targets, verified quickly.
#include "tests/support/dense_graph.h"

#include <chrono>

#include "core/names.h"
#include "core/verify.h"
#include "tests/support/test.h"

namespace eventide {
namespace {

TEST_CASE("36 dense layers are lowered and verified within the start-up budget") {
  double best_ms = 1e9;
  for (int round = 0; round < 3; ++round) {
    const auto start = std::chrono::steady_clock::now();
    const Graph graph = DenseGraph();
    std::vector<std::string> notes;
    VerifyOptions options;
    options.notes = &notes;
    const absl::StatusOr<Program> program = Lower(graph, options);
    best_ms = std::min(
        best_ms, std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
                     .count());
    INFO(program.status().ToString());
    REQUIRE(program.ok());
    for (const ProgramGrid& grid : program->grids) CHECK(!grid.is_gate);
    const Names names = {&program->symbols, &program->tensors, 'e'};
    CHECK(ExprText(names, program->events[1].target) == "ceil(tokens / 32) * 192");
    CHECK(ExprText(names, program->events[2].target) == "rows * 8");
    CHECK(ExprText(names, program->events[4].target) == "768");
    for (const std::string& note : notes) std::cout << note << "\n";
  }
  std::cout << "lowered and verified in " << best_ms << " ms\n";
  // 100 ms is the budget; sanitizers and busy machines get some slack.
  CHECK(best_ms < 400);
}

TEST_CASE("a missing wait in one layer's grid is found among 36 layers") {
  Graph g("thirty_six");
  const Expr tokens = g.AddSymbol("tokens", 1, 8192);
  const Expr tiles = CeilDiv(tokens, 32);
  const TensorId x = g.AddTensor("x", DType::kI32, {37, tokens}, TensorRole::kScratch);
  const TensorId u = g.AddTensor("u", DType::kI32, {tokens}, TensorRole::kScratch);
  const EventId x_done = g.AddEvents("x_done", {37, tiles}),
                u_done = g.AddEvents("u_done", {36, tiles});
  const IndexRange mine(At(0) * 32, Min(At(0) * 32 + 32, tokens));
  g.BeginSection("begin", 1);
  g.Call<Mix0>("embed", {Operand(x, 0).Region({mine})}, {}, {tiles}).Notify(x_done, {0, At(0)});
  g.BeginSection("layers", 36);
  g.Call<Mix1>("up", {Operand(x, Layer()).Region({mine}), Operand(u).Region({mine})}, {}, {tiles})
      .Wait(x_done, {Layer(), At(0)})
      .Notify(u_done, {Layer(), At(0)});
  // Waits for its layer's first tile only.
  g.Call<Mix1>("down", {Operand(u).Region({mine}), Operand(x, Layer() + 1).Region({mine})}, {},
               {tiles})
      .Wait(u_done, {Layer(), 0})
      .Notify(x_done, {Layer() + 1, At(0)});
  const absl::Status status = Verify(g);
  INFO(status.ToString());
  CHECK(status.message().find("grid down (layer 0, task (1)) reads tensor u") !=
        absl::string_view::npos);
  CHECK(status.message().find("tokens = 33") != absl::string_view::npos);
}

}  // namespace
}  // namespace eventide
