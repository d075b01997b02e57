// Graphs and programs as text, for people and golden tests, and as DOT.
#pragma once

#include <string>

#include "core/program.h"

namespace eventide {

// Symbols, tensors, events, and every grid with its edges, in the order of declaration.
std::string DumpText(const Graph& graph);
// The same of the lowered form, with derived targets, gates, publications and numbers.
std::string DumpText(const Program& program);

// Grids as boxes, events as ellipses, one cluster per section; publications dashed.
std::string DumpDot(const Program& program);

}  // namespace eventide
