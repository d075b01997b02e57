// Refusals about edges as they are written: unknown events, wrong dims, nobody who notifies,
// indices that leave the event's shape.
#include <algorithm>

#include "absl/strings/str_format.h"
#include "core/names.h"
#include "core/targets.h"
#include "core/verify.h"

namespace eventide {
namespace {

absl::Status CheckShape(const Graph& graph, const GridDecl& grid, const Edge& edge,
                        const char* verb) {
  if (edge.event < 0 || edge.event >= static_cast<int>(graph.events().size())) {
    return absl::InvalidArgumentError(
        absl::StrFormat("grid %s %s an event that this graph does not have", grid.name, verb));
  }
  const EventDecl& event = graph.events()[edge.event];
  if (edge.index.size() != event.shape.size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("grid %s %s event %s with %d indices; the event has %d dims", grid.name,
                        verb, event.name, edge.index.size(), event.shape.size()));
  }
  return absl::OkStatus();
}

// The ends of [0, extent): where monotone indices are extreme.
std::vector<int64_t> EndsOf(int64_t extent) {
  if (extent <= 0) return {};
  if (extent == 1) return {0};
  return {0, extent - 1};
}

// Evaluates one edge at the corners of its grid.
class CornerCheck {
 public:
  CornerCheck(const Graph& graph, const SymbolValues& values) : graph_(graph), values_(values) {
    env_.symbols = values.data();
    env_.coords = coords_;
  }

  absl::Status Check(const GridDecl& grid, const Edge& edge, const char* verb) {
    const int64_t layers = graph_.sections()[grid.section].layers.constant();
    for (int64_t layer : EndsOf(layers)) {
      env_.layer = layer;
      std::vector<std::vector<int64_t>> ends(kMaxCoords, {0});
      bool skipped = false;
      for (size_t i = 0; i < grid.extents.size(); ++i) {
        skipped |= grid.extents[i].HasLoad();
        if (!skipped) ends[i] = EndsOf(Evaluate(grid.extents[i], env_));
      }
      if (skipped) continue;
      for (int64_t a : ends[0]) {
        for (int64_t b : ends[1]) {
          for (int64_t c : ends[2]) {
            coords_[0] = a, coords_[1] = b, coords_[2] = c;
            RETURN_IF_ERROR(CheckHere(grid, edge, verb));
          }
        }
      }
    }
    return absl::OkStatus();
  }

 private:
  absl::Status CheckHere(const GridDecl& grid, const Edge& edge, const char* verb) {
    const EventDecl& event = graph_.events()[edge.event];
    for (size_t dim = 0; dim < edge.index.size(); ++dim) {
      const IndexRange& range = edge.index[dim];
      if (range.low.HasLoad() || range.high.HasLoad()) continue;
      const int64_t shape = Evaluate(event.shape[dim], env_);
      const int64_t low = Evaluate(range.low, env_), high = Evaluate(range.high, env_);
      if (low >= 0 && high <= shape && low <= high) continue;
      if (low == high) continue;  // an empty range names nothing
      return absl::InvalidArgumentError(absl::StrFormat(
          "grid %s %s event %s out of bounds: in dim %d, index %s is [%d, %d), the shape is %d, at "
          "layer %d, task (%d, %d, %d), with %s",
          grid.name, verb, event.name, dim, ExprText(graph_, range.low), low, high, shape,
          env_.layer, coords_[0], coords_[1], coords_[2], SymbolText(graph_.symbols(), values_)));
    }
    return absl::OkStatus();
  }

  const Graph& graph_;
  const SymbolValues& values_;
  int64_t coords_[kMaxCoords] = {};
  ExprEnv env_;
};

// Whether intervals alone show that the edge stays inside its event's shape.
bool IsInside(const Graph& graph, const GridDecl& grid, const Edge& edge) {
  const int64_t layers = graph.sections()[grid.section].layers.constant();
  const BoundEnv fixed = {[&](const Expr& leaf) -> Interval {
    if (leaf.kind() == ExprKind::kLayer) return {0, layers - 1};
    return LeafBounds(graph, leaf);
  }};
  const BoundEnv bounds = {[&](const Expr& leaf) -> Interval {
    if (leaf.kind() == ExprKind::kCoord)
      return {0, std::max<int64_t>(Bound(grid.extents[leaf.index()], fixed).high - 1, 0)};
    return fixed.leaf(leaf);
  }};
  for (size_t dim = 0; dim < edge.index.size(); ++dim) {
    const Interval low = Bound(edge.index[dim].low, bounds);
    const Interval high = Bound(edge.index[dim].high, bounds);
    const Interval shape = Bound(graph.events()[edge.event].shape[dim], bounds);
    if (low.low < 0 || high.high > shape.low || !edge.index[dim].single) return false;
  }
  return true;
}

}  // namespace

absl::Status VerifyEdges(const Graph& graph) {
  std::vector<bool> notified(graph.events().size(), false);
  for (const GridDecl& grid : graph.grids()) {
    for (const Edge& edge : grid.waits) RETURN_IF_ERROR(CheckShape(graph, grid, edge, "waits on"));
    for (const Edge& edge : grid.notifies) {
      RETURN_IF_ERROR(CheckShape(graph, grid, edge, "notifies"));
      notified[edge.event] = true;
    }
  }
  for (const GridDecl& grid : graph.grids()) {
    for (const Edge& edge : grid.waits) {
      if (!notified[edge.event]) {
        return absl::InvalidArgumentError(
            absl::StrFormat("grid %s waits on event %s, which is notified by nobody: the wait can "
                            "never fire",
                            grid.name, graph.events()[edge.event].name));
      }
    }
  }
  for (const TensorDecl& tensor : graph.tensors()) {
    if (tensor.published_by >= 0 && !notified[tensor.published_by]) {
      return absl::InvalidArgumentError(
          absl::StrFormat("tensor %s is published by event %s, which is notified by nobody",
                          tensor.name, graph.events()[tensor.published_by].name));
    }
  }
  std::vector<std::pair<const GridDecl*, std::pair<const Edge*, const char*>>> doubtful;
  for (const GridDecl& grid : graph.grids()) {
    for (const Edge& edge : grid.waits)
      if (!IsInside(graph, grid, edge)) doubtful.push_back({&grid, {&edge, "waits on"}});
    for (const Edge& edge : grid.notifies)
      if (!IsInside(graph, grid, edge)) doubtful.push_back({&grid, {&edge, "notifies"}});
  }
  if (doubtful.empty()) return absl::OkStatus();
  const auto check = [&](const SymbolValues& values) -> absl::Status {
    CornerCheck corner(graph, values);
    for (const auto& [grid, edge] : doubtful)
      RETURN_IF_ERROR(corner.Check(*grid, *edge.first, edge.second));
    return absl::OkStatus();
  };
  for (const SymbolValues& values : SymbolSamples(graph, 32, 7)) {
    if (check(values).ok()) continue;
    return check(SmallestBad(graph, values, [&](const SymbolValues& v) { return !check(v).ok(); }));
  }
  return absl::OkStatus();
}

}  // namespace eventide
