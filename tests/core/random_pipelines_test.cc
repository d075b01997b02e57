// Random pipelines that are sound by construction: rows flow through grids of different tile sizes,
// layer by layer, through events of yet another granularity; buffers are per layer or shared; some
// extents are known to the device only, so that gates stand in for missing producers. All must be
// accepted, with targets that equal enumeration; and each of their waits, taken away, must be
// missed.
#include <random>

#include "core/dump.h"
#include "core/verify.h"
#include "tests/support/enumerate.h"
#include "tests/support/test.h"
#include "tests/support/toy_ops.h"

namespace eventide {
namespace {

constexpr int kPipelines = 320;
constexpr int kMaxRows = 13;

struct Pipeline {
  int layers, stages;
  bool device_rows;             // the rows that exist are known to the device only
  std::vector<int> tile, step;  // per stage: rows of a task, rows of an event element
  std::vector<bool> shared;     // per stage: one buffer for all layers
};

Pipeline Draw(uint64_t seed) {
  std::mt19937_64 random(seed);
  Pipeline p;
  p.layers = 1 + static_cast<int>(random() % 3);
  p.stages = 2 + static_cast<int>(random() % 3);
  p.device_rows = random() % 3 == 0;
  for (int s = 0; s < p.stages; ++s) {
    p.tile.push_back(1 + static_cast<int>(random() % 4));
    p.step.push_back(1 + static_cast<int>(random() % 4));
    // Ranges clipped by a device value would need counts: elements hold whole tiles instead.
    if (p.device_rows) p.step.back() = p.tile.back() * (1 + static_cast<int>(random() % 2));
    p.shared.push_back(random() % 2);
  }
  return p;
}

// `skip`: the wait (counted over grids) that is left out; -1: none.
Graph Build(const Pipeline& p, int skip) {
  Graph g("pipeline");
  const Expr rows = g.AddSymbol("rows", 0, kMaxRows);
  const EventId known = g.AddEvents("known", {1});
  TensorId count;
  if (p.device_rows) {
    count = g.AddPublished("count", {1}, 0, kMaxRows, known, {0});
    g.Call<Mix0>("count", {count}, {}, {1}).Notify(known, {0});
  }
  const Expr live = p.device_rows ? g.Load(count, {0}) : rows;
  const Expr space = p.device_rows ? Expr(kMaxRows) : rows;
  std::vector<TensorId> buffers;
  std::vector<EventId> done;
  for (int s = 0; s < p.stages; ++s) {
    std::vector<Expr> shape;
    if (!p.shared[s]) shape.push_back(p.layers);
    shape.push_back(kMaxRows);
    buffers.push_back(g.AddTensor(absl::StrCat("t", s), DType::kI32, shape, TensorRole::kScratch));
    done.push_back(g.AddEvents(absl::StrCat("done", s), {p.layers, CeilDiv(space, p.step[s])}));
  }
  const TensorId carry =
      g.AddTensor("carry", DType::kI32, {p.layers + 1, kMaxRows}, TensorRole::kOutput);
  const int last = p.stages - 1;
  const EventId carried = g.AddEvents("carried", {p.layers + 1, CeilDiv(space, p.step[last])});
  const auto region = [&](int tile) {
    return IndexRange(At(0) * tile, Min(At(0) * tile + tile, live));
  };
  // The elements of an event of this step that hold the rows of a task.
  const auto elements = [&](int tile, int step) -> IndexRange {
    return IndexRange(At(0) * tile / step, CeilDiv(Min(At(0) * tile + tile, space), step));
  };
  const auto notified = [&](int tile, int step) -> IndexRange {
    return p.device_rows ? IndexRange(At(0) * tile / step) : elements(tile, step);
  };
  int waits = 0;
  g.BeginSection("begin", 1);
  g.Call<Mix0>("start", {Operand(carry, Expr(0)).Region({region(p.tile[last])})}, {},
               {CeilDiv(live, p.tile[last])})
      .Notify(carried, {0, notified(p.tile[last], p.step[last])});
  g.BeginSection("layers", p.layers);
  for (int s = 0; s < p.stages; ++s) {
    const auto at = [&](int stage) {
      return p.shared[stage] ? Operand(buffers[stage]) : Operand(buffers[stage], Layer());
    };
    const IndexRange mine = region(p.tile[s]);
    const Operand from = s == 0 ? Operand(carry, Layer()).Region({mine}) : at(s - 1).Region({mine});
    const EventId source = s == 0 ? carried : done[s - 1];
    auto grid = g.Call<Mix1>(absl::StrCat("stage", s), {from, at(s).Region({mine})}, {},
                             {CeilDiv(live, p.tile[s])});
    if (waits++ != skip)
      grid.Wait(source, {Layer(), elements(p.tile[s], p.step[s == 0 ? last : s - 1])});
    grid.Notify(done[s], {Layer(), notified(p.tile[s], p.step[s])});
  }
  auto end =
      g.Call<Mix1>("carry",
                   {p.shared[last] ? Operand(buffers[last]).Region({region(p.tile[last])})
                                   : Operand(buffers[last], Layer()).Region({region(p.tile[last])}),
                    Operand(carry, Layer() + 1).Region({region(p.tile[last])})},
                   {}, {CeilDiv(live, p.tile[last])});
  if (waits++ != skip) end.Wait(done[last], {Layer(), elements(p.tile[last], p.step[last])});
  end.Notify(carried, {Layer() + 1, notified(p.tile[last], p.step[last])});
  return g;
}

// For every waiting task: ordinary arrivals plus those of gates are the target, and at least 1.
void CheckTargets(const Graph& graph, const Program& program, const SymbolValues& symbols,
                  const PublishedValues& published) {
  const std::vector<ElementCounts> ordinary = EnumerateArrivals(graph, symbols, published);
  std::vector<ElementCounts> all = ordinary;
  for (const ProgramGrid& gate : program.grids) {
    if (!gate.is_gate) continue;
    ForEachTask(gate.extents, program.sections[gate.section].layers, symbols, published,
                [&](const ExprEnv& env) {
                  for (const Edge& edge : gate.notifies) {
                    ForEachElement(edge, env, [&](const ElementIndex& at) {
                      if (CountAt(ordinary[edge.event], at) == 0) ++all[edge.event][at];
                    });
                  }
                });
  }
  for (const ProgramGrid& grid : program.grids) {
    if (grid.is_gate) continue;
    ForEachTask(
        grid.extents, program.sections[grid.section].layers, symbols, published,
        [&](const ExprEnv& env) {
          for (const Edge& edge : grid.waits) {
            ForEachElement(edge, env, [&](const ElementIndex& at) {
              ExprEnv element = env;
              element.coords = at.data();
              const ProgramEvent& event = program.events[edge.event];
              REQUIRE(Evaluate(event.derived, element) == CountAt(ordinary[edge.event], at));
              REQUIRE(Evaluate(event.target, element) == CountAt(all[edge.event], at));
              REQUIRE(CountAt(all[edge.event], at) >= 1);
            });
          }
        });
  }
}

VerifyOptions WithOracle() {
  VerifyOptions options;
  options.published_samples = 5;
  options.sample_published = [](const SymbolValues&, uint64_t seed) -> PublishedValues {
    const int64_t rows =
        seed % 4 == 0 ? 0 : static_cast<int64_t>(seed * 2654435761u % (kMaxRows + 1));
    return [rows](int, int64_t) { return rows; };
  };
  return options;
}

TEST_CASE("random sound pipelines are accepted and their targets equal enumeration") {
  int gated = 0;
  for (uint64_t seed = 0; seed < kPipelines; ++seed) {
    const Graph graph = Build(Draw(seed), -1);
    const absl::StatusOr<Program> program = Lower(graph, WithOracle());
    INFO("seed " << seed << ": " << program.status().ToString() << "\n" << DumpText(graph));
    REQUIRE(program.ok());
    for (const ProgramGrid& grid : program->grids) gated += grid.is_gate;
    for (int64_t rows = 0; rows <= kMaxRows; ++rows) {
      const PublishedValues published = [rows](int, int64_t) {
        return (rows * 5 + 3) % (kMaxRows + 1);
      };
      CheckTargets(graph, *program, {rows}, published);
    }
  }
  CHECK(gated > 100);
}

TEST_CASE("every wait taken away from a sound pipeline is missed") {
  int refused = 0;
  for (uint64_t seed = 0; seed < kPipelines / 2; ++seed) {
    const Pipeline p = Draw(seed);
    for (int skip = 0; skip < p.stages + 1; ++skip) {
      const absl::Status status = Verify(Build(p, skip), WithOracle());
      INFO("seed " << seed << " without wait " << skip << "\n" << DumpText(Build(p, skip)));
      REQUIRE(!status.ok());
      ++refused;
    }
  }
  CHECK(refused > 300);
}

}  // namespace
}  // namespace eventide
