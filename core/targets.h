// Targets of event elements in closed form. For every notify edge the number of task coordinates
// that map to element e is a product over the coordinates: each dim of the edge bounds one
// coordinate from both sides by inverting its index expression, a coordinate that no dim names
// contributes its extent, and several edges add up. What has no such form (Loads, sums of two
// coordinates) needs SetCounts.
#pragma once

#include <vector>

#include "core/graph.h"

namespace eventide {

// How often the tasks of a grid with these extents, in a section of `layers` layers, arrive on
// element (Coord(0), Coord(1), ...) through `edge`. The error says which index stands in the way.
absl::StatusOr<Expr> CountArrivals(const Graph& graph, const std::vector<Expr>& extents,
                                   int64_t layers, const Edge& edge);

// The sum over all notify edges of ordinary grids, or a Load of the event's counts.
absl::StatusOr<Expr> DeriveTarget(const Graph& graph, int event);

// The arrivals if every extent had its largest value: 0 for elements that no grid can ever notify.
Expr PotentialTarget(const Graph& graph, int event);

// Bounds of the leaves of an expression over the elements of an event: coordinates within its
// shape.
BoundEnv ElementBounds(const Graph& graph, const std::vector<Expr>& shape);

// Bounds for symbols and Loads; coordinates and layers are unbounded.
Interval LeafBounds(const Graph& graph, const Expr& leaf);

// Drops minima and maxima that are decided because coordinates lie within `shape`.
Expr Simplify(const Graph& graph, const std::vector<Expr>& shape, const Expr& expr);

}  // namespace eventide
