// Which event elements must have fired before the Loads in an expression may be evaluated.
#pragma once

#include <vector>

#include "core/program.h"

namespace eventide {

// Fills extent_publications and edge_publications of every grid. Needs the events' targets: whoever
// waits on an element evaluates its target, so that Loads in targets count too.
absl::Status AddPublications(const Graph& graph, Program& program);

}  // namespace eventide
