#include "core/names.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace eventide {

std::string ExprText(const Names& names, const Expr& expr) {
  ExprNames spell;
  spell.leaf = [&](const Expr& leaf) -> std::string {
    switch (leaf.kind()) {
      case ExprKind::kSymbol:
        return (*names.symbols)[leaf.index()].name;
      case ExprKind::kCoord:
        return absl::StrCat(std::string(1, names.coordinate), leaf.index());
      case ExprKind::kLayer:
        return "layer";
      default:
        return absl::StrCat((*names.tensors)[leaf.index()].name,
                            ShapeText(names, leaf.load_index()));
    }
  };
  return ToString(expr, spell);
}

std::string ExprText(const Graph& graph, const Expr& expr, char coordinate) {
  return ExprText({&graph.symbols(), &graph.tensors(), coordinate}, expr);
}

std::string TaskText(size_t coords, int64_t layer, const int64_t* at) {
  return absl::StrCat("layer ", layer, ", task (",
                      absl::StrJoin(std::vector<int64_t>(at, at + coords), ", "), ")");
}

std::string IndexText(const Names& names, const std::vector<IndexRange>& index) {
  return absl::StrCat("[",
                      absl::StrJoin(index, ", ",
                                    [&](std::string* out, const IndexRange& range) {
                                      absl::StrAppend(out, ExprText(names, range.low));
                                      if (!range.single)
                                        absl::StrAppend(out, ":", ExprText(names, range.high));
                                    }),
                      "]");
}

std::string ShapeText(const Names& names, const std::vector<Expr>& shape) {
  return absl::StrCat("[",
                      absl::StrJoin(shape, ", ",
                                    [&](std::string* out, const Expr& dim) {
                                      absl::StrAppend(out, ExprText(names, dim));
                                    }),
                      "]");
}

}  // namespace eventide
