// How expressions of a graph or a program read in messages and dumps: symbols and tensors by name,
// coordinates as t0, t1, t2 (or e0, e1, ... for event elements), the layer as "layer".
#pragma once

#include <string>
#include <vector>

#include "core/graph.h"

namespace eventide {

struct Names {
  const std::vector<SymbolDecl>* symbols;
  const std::vector<TensorDecl>* tensors;
  char coordinate = 't';
};

std::string ExprText(const Names& names, const Expr& expr);
std::string ExprText(const Graph& graph, const Expr& expr, char coordinate = 't');

// "layer 3, task (0, 7)".
std::string TaskText(size_t coords, int64_t layer, const int64_t* at);

// "[layer, t0 / 4, 0:rows]".
std::string IndexText(const Names& names, const std::vector<IndexRange>& index);

// "[layers, ceil(rows / 4)]".
std::string ShapeText(const Names& names, const std::vector<Expr>& shape);

}  // namespace eventide
