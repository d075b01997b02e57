#include "core/publications.h"

#include "absl/strings/str_format.h"

namespace eventide {
namespace {

// Publications of publications end somewhere; a chain longer than this is a circle.
constexpr int kMaxDepth = 16;

bool SameEdge(const Edge& a, const Edge& b) {
  if (a.event != b.event || a.index.size() != b.index.size()) return false;
  for (size_t i = 0; i < a.index.size(); ++i) {
    if (!a.index[i].low.Equals(b.index[i].low) || !a.index[i].high.Equals(b.index[i].high))
      return false;
  }
  return true;
}

// Whether the expression never falls when its coordinate rises.
bool IsMonotone(const Expr& expr) {
  if (!expr.HasCoord()) return true;
  switch (expr.kind()) {
    case ExprKind::kCoord:
      return true;
    case ExprKind::kAdd:
    case ExprKind::kMin:
    case ExprKind::kMax:
      return IsMonotone(expr.a()) && IsMonotone(expr.b());
    case ExprKind::kMul:
    case ExprKind::kFloorDiv:
      return expr.b().AsConstant().value_or(0) > 0 && IsMonotone(expr.a());
    default:
      return false;
  }
}

class Collector {
 public:
  Collector(const Graph& graph, const Program& program) : graph_(graph), program_(program) {}

  // The publications of all Loads in `expr`, whose coordinates stand for `coords` (ranges for the
  // elements of a range edge; empty: for themselves).
  absl::Status Add(const Expr& expr, const std::vector<IndexRange>& coords, int depth,
                   std::vector<Edge>& out) {
    if (!expr.HasLoad()) return absl::OkStatus();
    if (expr.kind() != ExprKind::kLoad) {
      RETURN_IF_ERROR(Add(expr.a(), coords, depth, out));
      return Add(expr.b(), coords, depth, out);
    }
    // The index of the Load is evaluated first: what it loads is published earlier.
    for (const Expr& part : expr.load_index()) RETURN_IF_ERROR(Add(part, coords, depth, out));
    const TensorDecl& tensor = graph_.tensors()[expr.index()];
    if (depth > kMaxDepth) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "tensor %s: whether it is published depends on its own values", tensor.name));
    }
    Edge edge{tensor.published_by, {}};
    for (const Expr& index : tensor.published_index) {
      const Expr over_task = index.Substitute([&](const Expr& leaf) -> std::optional<Expr> {
        if (leaf.kind() == ExprKind::kCoord) return expr.load_index()[leaf.index()];
        return std::nullopt;
      });
      ASSIGN_OR_RETURN(IndexRange range, Place(over_task, coords, tensor.name));
      edge.index.push_back(range);
    }
    return AddWaited(edge, depth + 1, out);
  }

  // `edge` itself, after the publications that evaluating its targets needs.
  absl::Status AddWaited(const Edge& edge, int depth, std::vector<Edge>& out) {
    RETURN_IF_ERROR(AddTarget(edge, depth, out));
    for (const Edge& other : out) {
      if (SameEdge(other, edge)) return absl::OkStatus();
    }
    out.push_back(edge);
    return absl::OkStatus();
  }

  absl::Status AddTarget(const Edge& edge, int depth, std::vector<Edge>& out) {
    return Add(program_.events[edge.event].target, edge.index, depth, out);
  }
  absl::Status AddDerived(const Edge& edge, int depth, std::vector<Edge>& out) {
    return Add(program_.events[edge.event].derived, edge.index, depth, out);
  }

 private:
  // Replaces element coordinates by what an edge names in that dim; the result is a range if that
  // is.
  absl::StatusOr<IndexRange> Place(const Expr& expr, const std::vector<IndexRange>& coords,
                                   const std::string& tensor) {
    if (coords.empty() || !expr.HasCoord()) return IndexRange(expr);
    bool ranged = false;
    const auto replace = [&](bool first) {
      return expr.Substitute([&](const Expr& leaf) -> std::optional<Expr> {
        if (leaf.kind() != ExprKind::kCoord) return std::nullopt;
        const IndexRange& range = coords[leaf.index()];
        if (!range.single) ranged = true;
        return first || range.single ? range.low : range.high - 1;
      });
    };
    const Expr low = replace(true), last = replace(false);
    if (!ranged) return IndexRange(low);
    if (!IsMonotone(expr)) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "tensor %s: the elements that publish it for a range of event elements are not a range; "
          "write its publication index with sums, products and quotients by constants",
          tensor));
    }
    return IndexRange(low, last + 1);
  }

  const Graph& graph_;
  const Program& program_;
};

}  // namespace

absl::Status AddPublications(const Graph& graph, Program& program) {
  Collector collector(graph, program);
  for (ProgramGrid& grid : program.grids) {
    grid.extent_publications.clear();
    grid.edge_publications.clear();
    const auto named = [&](const absl::Status& status) {
      return status.ok() ? status
                         : absl::InvalidArgumentError(
                               absl::StrCat("grid ", grid.name, ": ", status.message()));
    };
    for (const Expr& extent : grid.extents)
      RETURN_IF_ERROR(named(collector.Add(extent, {}, 0, grid.extent_publications)));
    std::vector<Edge> edges = grid.extent_publications;
    const auto add_index = [&](const Edge& edge) -> absl::Status {
      for (const IndexRange& range : edge.index) {
        RETURN_IF_ERROR(collector.Add(range.low, {}, 0, edges));
        if (!range.single) RETURN_IF_ERROR(collector.Add(range.high, {}, 0, edges));
      }
      return absl::OkStatus();
    };
    for (const Edge& edge : grid.waits) {
      RETURN_IF_ERROR(named(add_index(edge)));
      RETURN_IF_ERROR(named(collector.AddTarget(edge, 0, edges)));
    }
    for (const Edge& edge : grid.notifies) {
      RETURN_IF_ERROR(named(add_index(edge)));
      // A gate asks for the derived target, which may hold Loads where the target, never below 1,
      // has become a constant.
      if (grid.is_gate) RETURN_IF_ERROR(named(collector.AddDerived(edge, 0, edges)));
    }
    grid.edge_publications.assign(edges.begin() + grid.extent_publications.size(), edges.end());
  }
  return absl::OkStatus();
}

}  // namespace eventide
