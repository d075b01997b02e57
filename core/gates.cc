#include "core/gates.h"

#include <algorithm>
#include <set>

#include "core/samples.h"
#include "core/targets.h"

namespace eventide {
namespace {

constexpr size_t kSamples = 48;
constexpr uint64_t kSeed = 0x6761746573;
constexpr int64_t kEnds = 8;  // values looked at on each end of a dim
constexpr int64_t kMaxCounted = 4096;

// The dim of an edge as the gate names it: the grid's own index where it follows from the layer,
// the whole dim where it depends on the task or on device values.
IndexRange GateRange(const IndexRange& range, const Expr& whole) {
  const bool fixed = !range.low.HasCoord() && !range.low.HasLoad() && !range.high.HasCoord() &&
                     !range.high.HasLoad();
  return fixed ? range : IndexRange(Expr(0), whole);
}

Edge GateEdge(const Program& program, const Edge& edge) {
  Edge result{edge.event, {}};
  for (size_t dim = 0; dim < edge.index.size(); ++dim)
    result.index.push_back(GateRange(edge.index[dim], program.events[edge.event].shape[dim]));
  return result;
}

// The first and last few of [low, high).
std::vector<int64_t> Ends(int64_t low, int64_t high) {
  std::vector<int64_t> values;
  for (int64_t value = low; value < std::min(high, low + kEnds); ++value) values.push_back(value);
  for (int64_t value = std::max(low + kEnds, high - kEnds); value < high; ++value)
    values.push_back(value);
  return values;
}

// Finds the grids that need gates.
class Analysis {
 public:
  Analysis(const Graph& graph, const Program& program)
      : graph_(graph), program_(program), samples_(SymbolSamples(graph, kSamples, kSeed)) {
    for (const ProgramEvent& event : program.events) {
      const Interval bound = Bound(event.derived, ElementBounds(graph, event.shape));
      may_be_zero_.push_back(bound.low <= 0);
    }
  }

  // Marks the grids whose gates must stand in for elements that `edge` waits on.
  void Mark(const std::vector<Expr>& extents, int64_t layers, const Edge& edge,
            std::set<int>& gated) {
    if (!may_be_zero_[edge.event]) return;
    // Layers differ where extents say so: then each of them is looked at.
    const bool alike = std::none_of(extents.begin(), extents.end(),
                                    [](const Expr& extent) { return extent.HasLayer(); });
    for (const SymbolValues& values : samples_) {
      for (int64_t layer = 0; layer < layers; ++layer) {
        if (alike && layer > 1 && layer < layers - 1) continue;
        // Loads at either end of their range: targets rise and fall with them, not both. Extents at their
        // largest, unless the task's coordinates are the element's: then a target that is zero where the
        // same values leave no such task is nobody's business.
        const int levels = NamesByCoordinate(edge) ? kLevels : 1;
        for (int level = 0; level < levels; ++level) {
          for (const bool high : {false, true}) {
            MarkOne(extents, layer, edge, values, level, high, gated);
          }
          if (!edge_has_load(edge) && !program_.events[edge.event].derived.HasLoad()) break;
        }
      }
    }
  }

 private:
  static bool edge_has_load(const Edge& edge) {
    return std::any_of(edge.index.begin(), edge.index.end(), [](const IndexRange& range) {
      return range.low.HasLoad() || range.high.HasLoad();
    });
  }

  // Whether every dim is the layer, a constant or one coordinate as it is.
  static bool NamesByCoordinate(const Edge& edge) {
    return std::all_of(edge.index.begin(), edge.index.end(), [](const IndexRange& range) {
      return range.single && !range.low.HasLoad() &&
             (range.low.kind() == ExprKind::kCoord || !range.low.HasCoord());
    });
  }

  static constexpr int kLevels = 10;  // of a Load: the largest value, a middle one, the smallest ones
  int64_t LoadAt(int tensor, int level) const {
    const TensorDecl& decl = graph_.tensors()[tensor];
    if (level == 0) return decl.max_value;
    if (level == 1) return decl.min_value + (decl.max_value - decl.min_value) / 2;
    return std::min(decl.min_value + level - 2, decl.max_value);
  }

  ExprEnv Env(const SymbolValues& values, int64_t layer, const int64_t* coords) const {
    ExprEnv env;
    env.symbols = values.data();
    env.coords = coords;
    env.layer = layer;
    return env;
  }
  // What waiters' extents are made of; remembers which values they loaded.
  ExprEnv WaiterEnv(const SymbolValues& values, int64_t layer, const int64_t* coords, int level) {
    ExprEnv env = Env(values, layer, coords);
    env.load = [this, level](int tensor, int64_t element) {
      shared_.insert({tensor, element});
      return LoadAt(tensor, level);
    };
    return env;
  }
  ExprEnv TargetEnv(const SymbolValues& values, const int64_t* element, int level,
                    bool high) const {
    ExprEnv env = Env(values, 0, element);
    env.load = [this, level, high](int tensor, int64_t index) {
      if (shared_.count({tensor, index})) return LoadAt(tensor, level);
      const TensorDecl& decl = graph_.tensors()[tensor];
      return high ? decl.max_value : decl.min_value;
    };
    return env;
  }

  // The values a dim of the edge takes while its coordinates run through their extents.
  std::vector<int64_t> DimValues(const std::vector<Expr>& extents, const IndexRange& range,
                                 int64_t shape, const SymbolValues& values, int64_t layer,
                                 int level) {
    if (range.low.HasLoad() || range.high.HasLoad()) return Ends(0, shape);
    int64_t coords[kMaxCoords] = {};
    const ExprEnv env = WaiterEnv(values, layer, coords, level);
    std::vector<std::vector<int64_t>> choices(kMaxCoords, {0});
    for (size_t i = 0; i < extents.size(); ++i) {
      const bool used = UsesCoord(range.low, i) || UsesCoord(range.high, i);
      const int64_t extent = Evaluate(extents[i], env);
      if (extent <= 0) return {};
      if (used) choices[i] = Ends(0, extent);
    }
    std::set<int64_t> found;
    for (int64_t a : choices[0]) {
      for (int64_t b : choices[1]) {
        for (int64_t c : choices[2]) {
          coords[0] = a, coords[1] = b, coords[2] = c;
          const int64_t low = std::max<int64_t>(Evaluate(range.low, env), 0);
          const int64_t high = std::min(Evaluate(range.high, env), shape);
          for (int64_t value : Ends(low, high)) found.insert(value);
        }
      }
    }
    return {found.begin(), found.end()};
  }

  static bool UsesCoord(const Expr& expr, size_t index) {
    bool used = false;
    Visit(expr, [&](const Expr& part) {
      used |= part.kind() == ExprKind::kCoord && part.index() == static_cast<int>(index);
    });
    return used;
  }

  void MarkOne(const std::vector<Expr>& extents, int64_t layer, const Edge& edge,
               const SymbolValues& values, int level, bool high, std::set<int>& gated) {
    const ProgramEvent& event = program_.events[edge.event];
    shared_.clear();
    std::vector<std::vector<int64_t>> choices(kMaxEventDims, {0});
    for (size_t dim = 0; dim < edge.index.size(); ++dim) {
      const int64_t shape = Evaluate(event.shape[dim], Env(values, layer, nullptr));
      choices[dim] = DimValues(extents, edge.index[dim], shape, values, layer, level);
    }
    if (!NamesByCoordinate(edge)) shared_.clear();
    int64_t element[kMaxEventDims];
    const ExprEnv env = TargetEnv(values, element, level, high);
    for (int64_t a : choices[0]) {
      for (int64_t b : choices[1]) {
        for (int64_t c : choices[2]) {
          for (int64_t d : choices[3]) {
            element[0] = a, element[1] = b, element[2] = c, element[3] = d;
            if (Evaluate(event.derived, env) <= 0)
              MarkProducers(edge.event, element, values, gated);
          }
        }
      }
    }
  }

  // Marks every grid whose gate would name the element.
  void MarkProducers(int event, const int64_t* element, const SymbolValues& values,
                     std::set<int>& gated) {
    for (size_t g = 0; g < program_.grids.size(); ++g) {
      const ProgramGrid& grid = program_.grids[g];
      if (gated.count(static_cast<int>(g))) continue;
      for (const Edge& edge : grid.notifies) {
        if (edge.event != event) continue;
        const Edge named = GateEdge(program_, edge);
        const int64_t layers = program_.sections[grid.section].layers;
        for (int64_t layer = 0; layer < layers; ++layer) {
          if (Names(named, element, Env(values, layer, nullptr))) {
            gated.insert(static_cast<int>(g));
            break;
          }
        }
      }
    }
  }

  static bool Names(const Edge& edge, const int64_t* element, const ExprEnv& env) {
    for (size_t dim = 0; dim < edge.index.size(); ++dim) {
      if (element[dim] < Evaluate(edge.index[dim].low, env) ||
          element[dim] >= Evaluate(edge.index[dim].high, env))
        return false;
    }
    return true;
  }

  const Graph& graph_;
  const Program& program_;
  std::vector<SymbolValues> samples_;
  std::vector<bool> may_be_zero_;
  std::set<std::pair<int, int64_t>> shared_;  // tensor and element: loaded for the waiters' extents
};

ProgramGrid MakeGate(const Program& program, int of) {
  const ProgramGrid& grid = program.grids[of];
  ProgramGrid gate;
  gate.name = absl::StrCat(grid.name, ".gate");
  gate.section = grid.section;
  gate.extents = {Expr(1)};
  gate.is_gate = true;
  gate.gate_of = of;
  for (const Edge& edge : grid.waits) gate.waits.push_back(GateEdge(program, edge));
  for (const Edge& edge : grid.notifies) gate.notifies.push_back(GateEdge(program, edge));
  return gate;
}

// How many gates name an element, at most, over all elements; nothing if that cannot be enumerated.
std::optional<int64_t> MostGates(const ProgramEvent& event, const Expr& count) {
  if (const auto constant = count.AsConstant()) return *constant;
  if (count.HasSymbol()) return std::nullopt;
  std::vector<int64_t> extent(kMaxEventDims, 1);
  int64_t elements = 1;
  for (size_t dim = 0; dim < event.capacity.size(); ++dim) {
    bool used = false;
    Visit(count, [&](const Expr& part) {
      used |= part.kind() == ExprKind::kCoord && part.index() == static_cast<int>(dim);
    });
    if (used) extent[dim] = event.capacity[dim];
    elements = SaturatingMul(elements, extent[dim]);
  }
  if (elements > kMaxCounted) return std::nullopt;
  int64_t most = 0, element[kMaxEventDims];
  ExprEnv env;
  env.coords = element;
  for (int64_t i = 0; i < elements; ++i) {
    int64_t rest = i;
    for (int dim = kMaxEventDims - 1; dim >= 0; --dim) {
      element[dim] = rest % extent[dim];
      rest /= extent[dim];
    }
    most = std::max(most, Evaluate(count, env));
  }
  return most;
}

// What waiters compare with once gates stand in for missing producers.
absl::Status Retarget(const Graph& graph, Program& program) {
  for (size_t e = 0; e < program.events.size(); ++e) {
    ProgramEvent& event = program.events[e];
    Expr count = 0;
    for (const ProgramGrid& grid : program.grids) {
      if (!grid.is_gate) continue;
      for (Edge edge : grid.notifies) {
        if (edge.event != static_cast<int>(e)) continue;
        event.gated = true;
        // Every element lies inside its event's shape: a whole dim leaves no condition.
        for (size_t dim = 0; dim < edge.index.size(); ++dim) {
          if (edge.index[dim].low.Equals(0) && edge.index[dim].high.Equals(event.shape[dim]))
            edge.index[dim] = IndexRange(Expr(0), Expr(int64_t{INT32_MAX}));
        }
        const int64_t layers = program.sections[grid.section].layers;
        ASSIGN_OR_RETURN(const Expr one, CountArrivals(graph, grid.extents, layers, edge));
        count = count + one;
      }
    }
    if (!event.gated) continue;
    count = Simplify(graph, event.shape, count);
    const std::optional<int64_t> most = MostGates(event, count);
    event.target = most && *most <= 1 ? Max(event.derived, 1)
                                      : event.derived + count * Max(Expr(1) - event.derived, 0);
    event.target = Simplify(graph, event.shape, event.target);
  }
  return absl::OkStatus();
}

// Puts each gate behind its grid and renumbers.
void InsertGates(Program& program, const std::set<int>& gated) {
  std::vector<ProgramGrid> grids;
  for (ProgramSection& section : program.sections) {
    const int first = static_cast<int>(grids.size());
    for (int g = section.first_grid; g < section.first_grid + section.grid_count; ++g) {
      grids.push_back(program.grids[g]);
      if (!gated.count(g)) continue;
      grids.push_back(MakeGate(program, g));
      grids.back().gate_of = static_cast<int>(grids.size()) - 2;
    }
    section.first_grid = first;
    section.grid_count = static_cast<int>(grids.size()) - first;
  }
  program.grids = std::move(grids);
}

}  // namespace

absl::Status AddGates(const Graph& graph, Program& program) {
  Analysis analysis(graph, program);
  std::set<int> gated;
  for (const ProgramGrid& grid : program.grids) {
    for (const Edge& edge : grid.waits)
      analysis.Mark(grid.extents, program.sections[grid.section].layers, edge, gated);
    for (const Edge& edge : grid.extent_publications)
      analysis.Mark({Expr(1)}, program.sections[grid.section].layers, edge, gated);
    for (const Edge& edge : grid.edge_publications)
      analysis.Mark(grid.extents, program.sections[grid.section].layers, edge, gated);
  }
  // A gate waits as well; its grid's elements may need gates that nobody asked for so far.
  std::set<int> done;
  while (done.size() < gated.size()) {
    const std::set<int> now = gated;
    for (int g : now) {
      if (!done.insert(g).second) continue;
      const ProgramGrid gate = MakeGate(program, g);
      for (const Edge& edge : gate.waits)
        analysis.Mark(gate.extents, program.sections[gate.section].layers, edge, gated);
    }
  }
  InsertGates(program, gated);
  return Retarget(graph, program);
}

}  // namespace eventide
