// Refusals that intervals decide: depths, divisors, ranges of i32, extents, sizes, leaves out of
// place.
#include <algorithm>

#include "absl/strings/str_format.h"
#include "core/names.h"
#include "core/targets.h"
#include "core/verify.h"

namespace eventide {
namespace {

// What an expression may be made of.
struct Allowed {
  int coords = 0;
  bool layer = false, load = false;
  std::vector<int64_t> last_coord;  // upper bounds
  int64_t last_layer = 0;
};

class Checker {
 public:
  Checker(const Graph& graph, std::string where, Allowed allowed)
      : graph_(graph), where_(std::move(where)), allowed_(std::move(allowed)) {}

  absl::Status Check(const Expr& expr) const {
    if (expr.depth() > kMaxExprDepth) {
      return Error(expr, absl::StrFormat("is nested deeper than %d operations", kMaxExprDepth));
    }
    absl::Status status;
    Visit(expr, [&](const Expr& part) {
      if (status.ok()) status = CheckPart(expr, part);
    });
    return status;
  }

  Interval Range(const Expr& expr) const {
    return Bound(expr, {[this](const Expr& leaf) { return Leaf(leaf); }});
  }

  absl::Status Error(const Expr& expr, const std::string& what) const {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %s %s", where_, ExprText(graph_, expr), what));
  }

 private:
  Interval Leaf(const Expr& leaf) const {
    if (leaf.kind() == ExprKind::kCoord)
      return {0, allowed_.last_coord.empty() ? 0 : allowed_.last_coord[leaf.index()]};
    if (leaf.kind() == ExprKind::kLayer) return {0, allowed_.last_layer};
    return LeafBounds(graph_, leaf);
  }

  absl::Status CheckPart(const Expr& whole, const Expr& part) const {
    switch (part.kind()) {
      case ExprKind::kSymbol:
        if (part.index() < 0 || part.index() >= static_cast<int>(graph_.symbols().size()))
          return absl::InvalidArgumentError(
              absl::StrCat(where_, ": a symbol that this graph does not have"));
        return absl::OkStatus();
      case ExprKind::kCoord:
        if (part.index() < 0 || part.index() >= allowed_.coords) {
          return Error(whole, absl::StrFormat("uses coordinate %d, but there are %d here",
                                              part.index(), allowed_.coords));
        }
        return absl::OkStatus();
      case ExprKind::kLayer:
        if (!allowed_.layer) return Error(whole, "uses the layer, which has no meaning here");
        return absl::OkStatus();
      case ExprKind::kLoad:
        if (!allowed_.load)
          return Error(whole, "uses a device-resident value, which it may not here");
        return absl::OkStatus();
      case ExprKind::kConstant:
        return CheckRange(whole, part);
      case ExprKind::kFloorDiv:
      case ExprKind::kMod:
        if (Range(part.b()).low <= 0)
          return Error(whole, absl::StrFormat("divides by %s, which may be zero or negative",
                                              ExprText(graph_, part.b())));
        return CheckRange(whole, part);
      default:
        return CheckRange(whole, part);
    }
  }

  // The device computes in i32; every intermediate value must fit.
  absl::Status CheckRange(const Expr& whole, const Expr& part) const {
    const Interval range = Range(part);
    if (range.low < INT32_MIN || range.high > INT32_MAX)
      return Error(whole, absl::StrFormat("may reach %d, beyond what 32 bits hold",
                                          range.high > INT32_MAX ? range.high : range.low));
    return absl::OkStatus();
  }

  const Graph& graph_;
  std::string where_;
  Allowed allowed_;
};

absl::Status CheckEvents(const Graph& graph) {
  int64_t total = 0;
  for (const EventDecl& event : graph.events()) {
    Checker checker(graph, absl::StrCat("event ", event.name), {});
    int64_t elements = 1;
    for (const Expr& dim : event.shape) {
      RETURN_IF_ERROR(checker.Check(dim));
      const Interval range = checker.Range(dim);
      if (range.low < 0) return checker.Error(dim, "may be negative, as a dim of its shape");
      elements = SaturatingMul(elements, range.high);
    }
    total = SaturatingAdd(total, elements);
    if (total > INT32_MAX) {
      return absl::InvalidArgumentError(
          absl::StrFormat("event %s has up to %d elements; with it the counter bank exceeds 2^31",
                          event.name, elements));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckTensors(const Graph& graph) {
  for (const TensorDecl& tensor : graph.tensors()) {
    const std::string where = absl::StrCat("tensor ", tensor.name);
    Checker checker(graph, where, {});
    int64_t bytes = static_cast<int64_t>(DTypeSize(tensor.dtype));
    for (const Expr& dim : tensor.shape) {
      RETURN_IF_ERROR(checker.Check(dim));
      const Interval range = checker.Range(dim);
      if (range.low < 0) return checker.Error(dim, "may be negative, as a dim of its shape");
      if (__builtin_mul_overflow(bytes, range.high, &bytes))
        return absl::InvalidArgumentError(absl::StrCat(where, ": its size exceeds 2^63 bytes"));
    }
    Allowed allowed;
    allowed.coords = static_cast<int>(tensor.shape.size());
    allowed.layer = true;
    for (const Expr& dim : tensor.shape)
      allowed.last_coord.push_back(std::max<int64_t>(checker.Range(dim).high - 1, 0));
    Checker published(graph, where + ", its publication", allowed);
    for (const Expr& index : tensor.published_index) RETURN_IF_ERROR(published.Check(index));
  }
  return absl::OkStatus();
}

absl::Status CheckGrid(const Graph& graph, const GridDecl& grid) {
  const std::string where = absl::StrCat("grid ", grid.name);
  Allowed allowed;
  allowed.layer = allowed.load = true;
  allowed.last_layer = graph.sections()[grid.section].layers.constant() - 1;
  Checker extents(graph, where, allowed);
  int64_t tasks = 1;
  for (const Expr& extent : grid.extents) {
    RETURN_IF_ERROR(extents.Check(extent));
    const Interval range = extents.Range(extent);
    if (range.low < 0) return extents.Error(extent, "may be negative, as an extent");
    tasks = SaturatingMul(tasks, std::max<int64_t>(range.high, 1));
    allowed.last_coord.push_back(std::max<int64_t>(range.high - 1, 0));
  }
  if (tasks > INT32_MAX) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s may have %d tasks; at most 2^31 - 1 are possible", where, tasks));
  }
  allowed.coords = static_cast<int>(grid.extents.size());
  Checker edges(graph, where, allowed);
  const auto check_index = [&](const std::vector<IndexRange>& index) -> absl::Status {
    for (const IndexRange& range : index) {
      RETURN_IF_ERROR(edges.Check(range.low));
      RETURN_IF_ERROR(edges.Check(range.high));
    }
    return absl::OkStatus();
  };
  for (const Edge& edge : grid.waits) RETURN_IF_ERROR(check_index(edge.index));
  for (const Edge& edge : grid.notifies) RETURN_IF_ERROR(check_index(edge.index));
  Allowed layer_only;
  layer_only.layer = true;
  layer_only.last_layer = allowed.last_layer;
  for (const Operand& operand : grid.operands) {
    const TensorDecl& tensor = graph.tensors()[operand.tensor];
    RETURN_IF_ERROR(check_index(operand.region));
    if (operand.region.size() + operand.indexed > tensor.shape.size()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s: its region in tensor %s has more dims than the tensor", where, tensor.name));
    }
    if (!operand.indexed) continue;
    Checker layer(graph, absl::StrCat(where, ", tensor ", tensor.name), layer_only);
    RETURN_IF_ERROR(layer.Check(operand.layer));
    const Interval used = layer.Range(operand.layer);
    const Interval has = tensor.shape.empty() ? Interval{0, 0} : extents.Range(tensor.shape[0]);
    if (used.low < 0 || used.high >= has.low) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s: layer index %s of tensor %s is out of range: it reaches [%d, %d], there are %d",
          where, ExprText(graph, operand.layer), tensor.name, used.low, used.high, has.low));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status VerifyExpressions(const Graph& graph) {
  for (const Expr& dim : graph.dims()) RETURN_IF_ERROR(Checker(graph, "a dim", {}).Check(dim));
  for (const Expr& assumption : graph.assumptions())
    RETURN_IF_ERROR(Checker(graph, "an assumption", {}).Check(assumption));
  RETURN_IF_ERROR(CheckEvents(graph));
  RETURN_IF_ERROR(CheckTensors(graph));
  for (const GridDecl& grid : graph.grids()) RETURN_IF_ERROR(CheckGrid(graph, grid));
  return absl::OkStatus();
}

}  // namespace eventide
