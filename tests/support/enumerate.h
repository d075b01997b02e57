// Arrivals on event elements counted one by one: every task of every grid, every index of every
// edge, evaluated as written. Shares nothing with core/targets.cc or core/expand.cc but Evaluate.
#pragma once

#include <map>
#include <vector>

#include "core/program.h"
#include "core/verify.h"

namespace eventide {

using ElementIndex = std::vector<int64_t>;
using ElementCounts = std::map<ElementIndex, int64_t>;  // of one event

// Calls visit(index) for every element that `edge` names.
template <class Visit>
void ForEachElement(const Edge& edge, const ExprEnv& env, const Visit& visit) {
  ElementIndex low, high;
  for (const IndexRange& range : edge.index) {
    low.push_back(Evaluate(range.low, env));
    high.push_back(Evaluate(range.high, env));
    if (low.back() >= high.back()) return;
  }
  ElementIndex at = low;
  while (true) {
    visit(at);
    size_t dim = at.size();
    while (dim > 0 && ++at[dim - 1] == high[dim - 1]) {
      at[dim - 1] = low[dim - 1];
      --dim;
    }
    if (dim == 0) return;
  }
}

// Calls visit(env) for every task of a grid with these extents.
template <class Visit>
void ForEachTask(const std::vector<Expr>& extents, int64_t layers, const SymbolValues& symbols,
                 const PublishedValues& published, const Visit& visit) {
  for (int64_t layer = 0; layer < layers; ++layer) {
    int64_t coords[kMaxCoords] = {}, size[kMaxCoords] = {1, 1, 1};
    ExprEnv env;
    env.symbols = symbols.data();
    env.coords = coords;
    env.layer = layer;
    env.load = published;
    for (size_t i = 0; i < extents.size(); ++i) size[i] = Evaluate(extents[i], env);
    for (coords[0] = 0; coords[0] < size[0]; ++coords[0]) {
      for (coords[1] = 0; coords[1] < size[1]; ++coords[1]) {
        for (coords[2] = 0; coords[2] < size[2]; ++coords[2]) visit(env);
      }
    }
  }
}

// Per event: arrivals of the ordinary grids' tasks.
inline std::vector<ElementCounts> EnumerateArrivals(const Graph& graph, const SymbolValues& symbols,
                                                    const PublishedValues& published) {
  std::vector<ElementCounts> counts(graph.events().size());
  for (const GridDecl& grid : graph.grids()) {
    const int64_t layers = graph.sections()[grid.section].layers.constant();
    ForEachTask(grid.extents, layers, symbols, published, [&](const ExprEnv& env) {
      for (const Edge& edge : grid.notifies)
        ForEachElement(edge, env, [&](const ElementIndex& at) { ++counts[edge.event][at]; });
    });
  }
  return counts;
}

inline int64_t CountAt(const ElementCounts& counts, const ElementIndex& at) {
  const auto found = counts.find(at);
  return found == counts.end() ? 0 : found->second;
}

// Every element of a shape, for these symbol values.
template <class Visit>
void ForEachIndex(const std::vector<Expr>& shape, const SymbolValues& symbols, const Visit& visit) {
  Edge all{0, {}};
  for (const Expr& dim : shape) all.index.push_back(IndexRange(Expr(0), dim));
  ExprEnv env;
  env.symbols = symbols.data();
  ForEachElement(all, env, visit);
}

}  // namespace eventide
