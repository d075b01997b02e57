// A gate looks at the derived target of what it stands in for. Where that is a device's own count
// of at most one, the *target* is always 1 and holds no Load; gates then did not wait for the count
// to be published, and read it too early. `eventide stress` found it in a decoder with one tile of
// vocabulary and a budget of one tile of tokens.
#include "core/program.h"
#include "core/verify.h"
#include "tests/support/test.h"
#include "tests/support/toy_ops.h"

namespace eventide {
namespace {

TEST_CASE("a gate waits for the counts in a derived target, also where the target is a constant") {
  Graph g("gated");
  const TensorId x = g.AddTensor("x", DType::kI32, {1}, TensorRole::kInput);
  const EventId decided = g.AddEvents("decided", {1});
  const TensorId count = g.AddPublished("count", {1}, 0, 1, decided, {0});
  const TensorId y = g.AddTensor("y", DType::kI32, {1}, TensorRole::kScratch);
  const TensorId z = g.AddTensor("z", DType::kI32, {1}, TensorRole::kOutput);
  const EventId done = g.AddEvents("done", {1});
  g.Call<ToyChoose>("choose", {x, count}, {1, 1, 0, 1}, {1}).Notify(decided, {0});
  g.Call<Mix1>("maybe", {x, y}, {.seed = 1, .spans = {}}, {g.Load(count, {0})}).Notify(done, {0});
  // Reads what `choose` wrote; nothing but `done` stands between them.
  g.Call<Mix1>("last", {count, z}, {.seed = 2, .spans = {}}, {1}).Wait(done, {0});
  VerifyOptions options;
  options.sample_published = [](const SymbolValues&, uint64_t seed) {
    return [seed](int, int64_t) { return static_cast<int64_t>(seed % 2); };
  };
  const absl::StatusOr<Program> program = Lower(g, options);
  INFO(program.status().ToString());
  REQUIRE(program.ok());
  int gates = 0;
  for (const ProgramGrid& grid : program->grids) {
    if (!grid.is_gate) continue;
    ++gates;
    REQUIRE(grid.edge_publications.size() == 1);
    CHECK(grid.edge_publications[0].event == decided.index);
  }
  CHECK(gates == 1);
  for (const ProgramEvent& event : program->events) {
    if (event.name == "done") CHECK_FALSE(event.target.HasLoad());
  }
}

}  // namespace
}  // namespace eventide
