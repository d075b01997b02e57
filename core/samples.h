// Symbol values worth trying: ends of ranges, the neighbourhood of every tile size that divides
// something in the graph, and a few random ones. Deterministic, in lexicographic order of
// declaration.
#pragma once

#include <cstdint>
#include <vector>

#include "core/graph.h"

namespace eventide {

using SymbolValues = std::vector<int64_t>;

// At most `limit` combinations (always at least one if any satisfies the graph's assumptions). All
// combinations of the values worth trying if they are few enough.
std::vector<SymbolValues> SymbolSamples(const Graph& graph, size_t limit, uint64_t seed);

// Whether the values lie in their ranges and satisfy the graph's assumptions.
bool IsAdmissible(const Graph& graph, const SymbolValues& values);

// The smallest admissible values, in lexicographic order, for which `is_bad` holds, among small and
// interesting ones; `bad` itself if none before it is.
SymbolValues SmallestBad(const Graph& graph, const SymbolValues& bad,
                         const std::function<bool(const SymbolValues&)>& is_bad);

// "rows = 3, tokens = 17".
std::string SymbolText(const std::vector<SymbolDecl>& symbols, const SymbolValues& values);

// Calls `visit` for every expression of the graph: shapes, extents, edges, layers, regions, dims.
void VisitExpressions(const Graph& graph, const std::function<void(const Expr&)>& visit);

}  // namespace eventide
