#include "core/targets.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_format.h"
#include "core/names.h"

namespace eventide {
namespace {

constexpr int kLayerVariable = kMaxCoords;  // after the coordinates
constexpr int kVariables = kMaxCoords + 1;

bool IsFree(const Expr& expr) {
  return !expr.HasCoord() && !expr.HasLayer();
}

// Collects, for one edge, what being mapped to element e means for each coordinate.
class Inverter {
 public:
  Inverter(const Graph& graph, int64_t layers) : graph_(graph), layers_(layers) {}

  // Adds the condition index <= limit, where `limit` is over the element.
  absl::Status AtMost(const Expr& index, const Expr& limit);
  // Adds the condition index >= limit.
  absl::Status AtLeast(const Expr& index, const Expr& limit);

  struct Span {
    bool used = false;
    std::optional<Expr> low, high;  // low <= coordinate < high
  };
  const Span& span(int variable) const { return spans_[variable]; }
  const Expr& indicator() const { return indicator_; }

 private:
  absl::Status Invert(const Expr& index, const Expr& limit, bool at_most);
  bool IsPositive(const Expr& expr) const {
    return IsFree(expr) &&
           Bound(expr, {[&](const Expr& leaf) { return LeafBounds(graph_, leaf); }}).low >= 1;
  }
  void Restrict(int variable, const Expr& limit, bool at_most) {
    Span& span = spans_[variable];
    span.used = true;
    if (at_most) {
      span.high = span.high ? Min(*span.high, limit + 1) : limit + 1;
    } else {
      span.low = span.low ? Max(*span.low, limit) : limit;
    }
  }

  const Graph& graph_;
  int64_t layers_;
  std::array<Span, kVariables> spans_;
  Expr indicator_ = 1;  // 0 or 1: conditions without a coordinate
};

absl::Status Inverter::AtMost(const Expr& index, const Expr& limit) {
  return Invert(index, limit, true);
}
absl::Status Inverter::AtLeast(const Expr& index, const Expr& limit) {
  return Invert(index, limit, false);
}

// Peels one operation off `index`; what has no coordinate moves to the other side. With q = floor(x
// / d): q <= E iff x <= d * (E + 1) - 1, and q >= E iff x >= d * E.
absl::Status Inverter::Invert(const Expr& index, const Expr& limit, bool at_most) {
  if (IsFree(index)) {
    const Expr slack = at_most ? limit - index : index - limit;
    indicator_ = indicator_ * Min(Max(slack + 1, 0), 1);
    return absl::OkStatus();
  }
  switch (index.kind()) {
    case ExprKind::kCoord:
      Restrict(index.index(), limit, at_most);
      return absl::OkStatus();
    case ExprKind::kLayer:
      Restrict(kLayerVariable, limit, at_most);
      return absl::OkStatus();
    case ExprKind::kAdd:
      if (IsFree(index.b())) return Invert(index.a(), limit - index.b(), at_most);
      if (IsFree(index.a())) return Invert(index.b(), limit - index.a(), at_most);
      break;
    case ExprKind::kSub:
      if (IsFree(index.b())) return Invert(index.a(), limit + index.b(), at_most);
      if (IsFree(index.a())) return Invert(index.b(), index.a() - limit, !at_most);
      break;
    case ExprKind::kMul: {
      const bool right = IsPositive(index.b());
      if (!right && !IsPositive(index.a())) break;
      const Expr factor = right ? index.b() : index.a();
      const Expr rest = right ? index.a() : index.b();
      return Invert(rest, at_most ? FloorDiv(limit, factor) : CeilDiv(limit, factor), at_most);
    }
    case ExprKind::kFloorDiv:
      if (!IsPositive(index.b())) break;
      return Invert(index.a(), at_most ? index.b() * (limit + 1) - 1 : index.b() * limit, at_most);
    case ExprKind::kMin:
      if (at_most) break;
      RETURN_IF_ERROR(Invert(index.a(), limit, at_most));
      return Invert(index.b(), limit, at_most);
    case ExprKind::kMax:
      if (!at_most) break;
      RETURN_IF_ERROR(Invert(index.a(), limit, at_most));
      return Invert(index.b(), limit, at_most);
    default:
      break;
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "index %s has no closed form (it needs one coordinate per dim, in sums, "
      "products and quotients with what does not depend on the task); give the event "
      "its counts with SetCounts",
      ExprText(graph_, index)));
}

// One element names the layer of its producers when a dim is Layer() + k: then extents may use it.
std::optional<Expr> PinnedLayer(const Edge& edge) {
  for (size_t dim = 0; dim < edge.index.size(); ++dim) {
    if (!edge.index[dim].single) continue;
    const Expr offset = edge.index[dim].low - Expr::Layer();
    const auto constant = offset.AsConstant();
    if (constant) return Expr::Coord(static_cast<int>(dim)) - *constant;
  }
  return std::nullopt;
}

// `expr` of the layer that was pinned. Elements of other sections' layers name none: the layer's own span
// makes them count 0, whatever stands here, but what is loaded has to exist and to be published by then.
// So not the layer is clamped where it is an index of a Load, but the index: Layer() + 1 of the layer in
// front of the first one is 0.
Expr AtLayer(const Graph& graph, const Expr& expr, const Expr& pinned, int64_t layers) {
  const auto leaf = [&](const Expr& part, bool inside) -> std::optional<Expr> {
    if (part.kind() != ExprKind::kLayer) return std::nullopt;
    return inside ? pinned : Min(Max(pinned, 0), Expr(layers - 1));
  };
  return expr.Substitute([&](const Expr& part) -> std::optional<Expr> {
    if (part.kind() != ExprKind::kLoad || !part.HasLayer()) return leaf(part, false);
    const std::vector<Expr>& shape = graph.tensors()[part.index()].shape;
    std::vector<Expr> index;
    Expr element = 0;
    for (size_t dim = 0; dim < shape.size(); ++dim) {
      const Expr& old = part.load_index()[dim];
      const Expr plain = old.Substitute([&](const Expr& p) -> std::optional<Expr> {
        if (p.kind() == ExprKind::kLoad) return AtLayer(graph, p, pinned, layers);
        return leaf(p, true);
      });
      index.push_back(old.HasLayer() ? Min(Max(plain, 0), shape[dim] - 1) : plain);
      element = (dim == 0 ? Expr(0) : element * shape[dim]) + index.back();
    }
    return Expr::Load(part.index(), element, std::move(index));
  });
}

}  // namespace

Interval LeafBounds(const Graph& graph, const Expr& leaf) {
  if (leaf.kind() == ExprKind::kSymbol) {
    const SymbolDecl& symbol = graph.symbols()[leaf.index()];
    return {symbol.min, symbol.max};
  }
  if (leaf.kind() == ExprKind::kLoad) {
    const TensorDecl& tensor = graph.tensors()[leaf.index()];
    return {tensor.min_value, tensor.max_value};
  }
  return {INT64_MIN, INT64_MAX};
}

BoundEnv ElementBounds(const Graph& graph, const std::vector<Expr>& shape) {
  std::vector<int64_t> last;
  for (const Expr& extent : shape) {
    const Interval bound =
        Bound(extent, {[&](const Expr& leaf) { return LeafBounds(graph, leaf); }});
    last.push_back(std::max<int64_t>(SaturatingSub(bound.high, 1), 0));
  }
  return {[&graph, last](const Expr& leaf) -> Interval {
    if (leaf.kind() == ExprKind::kCoord && leaf.index() < static_cast<int>(last.size()))
      return {0, last[leaf.index()]};
    return LeafBounds(graph, leaf);
  }};
}

namespace {

class Simplifier {
 public:
  Simplifier(const Graph& graph, const std::vector<Expr>& shape)
      : shape_(shape), bounds_(ElementBounds(graph, shape)) {}

  Expr operator()(const Expr& expr) const {
    if (expr.kind() == ExprKind::kLoad) {
      std::vector<Expr> index;
      for (const Expr& part : expr.load_index()) index.push_back((*this)(part));
      return Expr::Load(expr.index(), (*this)(expr.a()), std::move(index));
    }
    if (expr.kind() < ExprKind::kLoad) return expr;
    const Expr a = (*this)(expr.a()), b = (*this)(expr.b());
    if (expr.kind() == ExprKind::kMin || expr.kind() == ExprKind::kMax) {
      const bool is_min = expr.kind() == ExprKind::kMin;
      if (IsAtLeast(a, b)) return is_min ? b : a;
      if (IsAtLeast(b, a)) return is_min ? a : b;
    }
    return Expr::Binary(expr.kind(), a, b);
  }

 private:
  // Whether a >= b for every element of the shape, as far as simple reasons go.
  bool IsAtLeast(const Expr& a, const Expr& b) const {
    if (Bound(a, bounds_).low >= Bound(b, bounds_).high) return true;
    if (a.kind() == ExprKind::kMin) return IsAtLeast(a.a(), b) && IsAtLeast(a.b(), b);
    if (const auto difference = (a - b).AsConstant()) return *difference >= 0;
    // min(p, q) - c >= 0, where c <= both.
    if (a.kind() == ExprKind::kSub && b.AsConstant() == 0) return IsAtLeast(a.a(), a.b());
    return IsInsideShape(a, b);
  }

  // a >= b where b is the coordinate e (a: its dim's extent), e + 1 (likewise), or e * d (a: what
  // is cut into ceil(a / d) elements).
  bool IsInsideShape(const Expr& a, const Expr& b) const {
    Expr base = b;
    int64_t added = 0, tile = 1;
    if (base.kind() == ExprKind::kAdd && base.b().AsConstant()) {
      added = *base.b().AsConstant();
      base = base.a();
    }
    if (base.kind() == ExprKind::kMul && base.b().AsConstant()) {
      tile = *base.b().AsConstant();
      base = base.a();
    }
    if (base.kind() != ExprKind::kCoord || base.index() >= static_cast<int>(shape_.size()))
      return false;
    return tile >= 1 && added <= 1 && shape_[base.index()].Equals(CeilDiv(a, tile));
  }

  const std::vector<Expr>& shape_;
  BoundEnv bounds_;
};

}  // namespace

Expr Simplify(const Graph& graph, const std::vector<Expr>& shape, const Expr& expr) {
  return Simplifier(graph, shape)(expr);
}

absl::StatusOr<Expr> CountArrivals(const Graph& graph, const std::vector<Expr>& extents,
                                   int64_t layers, const Edge& edge) {
  const auto one_layer = [&](const Expr& expr) {
    if (layers != 1) return expr;
    return expr.Substitute([](const Expr& leaf) -> std::optional<Expr> {
      if (leaf.kind() == ExprKind::kLayer) return Expr(0);
      return std::nullopt;
    });
  };
  Inverter inverter(graph, layers);
  for (size_t dim = 0; dim < edge.index.size(); ++dim) {
    const Expr element = Expr::Coord(static_cast<int>(dim));
    const Expr low = one_layer(edge.index[dim].low);
    const Expr high = one_layer(edge.index[dim].high);
    if (low.HasLoad() || high.HasLoad()) {
      return absl::InvalidArgumentError(
          "an index is read from a device tensor, so that no closed form gives the target; give "
          "the "
          "event its counts with SetCounts");
    }
    RETURN_IF_ERROR(inverter.AtMost(low, element));
    if (edge.index[dim].single) {
      RETURN_IF_ERROR(inverter.AtLeast(low, element));
    } else {
      RETURN_IF_ERROR(inverter.AtLeast(high, element + 1));
    }
  }
  const std::optional<Expr> pinned = PinnedLayer(edge);
  Expr count = inverter.indicator();
  for (int variable = 0; variable < kVariables; ++variable) {
    const bool is_layer = variable == kLayerVariable;
    if (!is_layer && variable >= static_cast<int>(extents.size())) {
      if (inverter.span(variable).used) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "an index names coordinate %d of a grid with %d", variable, extents.size()));
      }
      continue;
    }
    Expr extent = is_layer ? Expr(layers) : one_layer(extents[variable]);
    if (extent.HasLayer()) {
      if (!pinned) {
        return absl::InvalidArgumentError(
            "an extent depends on the layer, but no dim of the edge is the layer (plus a "
            "constant); "
            "add such a dim to the event or give it counts with SetCounts");
      }
      extent = AtLayer(graph, extent, *pinned, layers);
    }
    const auto& span = inverter.span(variable);
    const Expr low = span.low ? Max(*span.low, 0) : Expr(0);
    const Expr high = span.high ? Min(*span.high, extent) : extent;
    count = count * Max(high - low, 0);
  }
  return count;
}

absl::StatusOr<Expr> DeriveTarget(const Graph& graph, int event) {
  const EventDecl& decl = graph.events()[event];
  if (decl.count_tensor >= 0) {
    Expr element = 0;
    std::vector<Expr> index;
    const TensorDecl& counts = graph.tensors()[decl.count_tensor];
    for (size_t dim = 0; dim < decl.shape.size(); ++dim) {
      index.push_back(Expr::Coord(static_cast<int>(dim)));
      element = (dim == 0 ? Expr(0) : element * counts.shape[dim]) + index.back();
    }
    return Expr::Load(decl.count_tensor, element, index);
  }
  Expr target = 0;
  for (const GridDecl& grid : graph.grids()) {
    const int64_t layers = graph.sections()[grid.section].layers.constant();
    for (const Edge& edge : grid.notifies) {
      if (edge.event != event) continue;
      absl::StatusOr<Expr> count = CountArrivals(graph, grid.extents, layers, edge);
      if (!count.ok()) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "event %s, notified by grid %s: %s", decl.name, grid.name, count.status().message()));
      }
      target = target + *count;
    }
  }
  return Simplify(graph, decl.shape, target);
}

Expr PotentialTarget(const Graph& graph, int event) {
  if (graph.events()[event].count_tensor >= 0) return Expr(1);
  Expr total = 0;
  for (const GridDecl& grid : graph.grids()) {
    const int64_t layers = graph.sections()[grid.section].layers.constant();
    std::vector<Expr> extents;
    for (const Expr& extent : grid.extents) {
      const Interval bound = Bound(extent, {[&](const Expr& leaf) -> Interval {
                                     if (leaf.kind() == ExprKind::kLayer) return {0, layers - 1};
                                     return LeafBounds(graph, leaf);
                                   }});
      extents.push_back(Expr(bound.high));
    }
    for (const Edge& edge : grid.notifies) {
      if (edge.event != event) continue;
      const absl::StatusOr<Expr> count = CountArrivals(graph, extents, layers, edge);
      // Each edge counts at most once: whether, not how often, matters, and sums must stay small.
      total = total + (count.ok() ? Min(*count, 1) : Expr(1));
    }
  }
  return Simplify(graph, graph.events()[event].shape, total);
}

}  // namespace eventide
