// Gate tasks: an empty grid inherits readiness. Where an element that somebody waits on may have
// the derived target 0, the element would be open before anything that its producers would have
// waited for. So every grid that could have notified it gets one gate task (per layer), placed
// directly behind the grid, that waits for all elements the grid could wait for, then arrives once
// on each element the grid could notify whose derived target is 0. The element's target becomes the
// number of gates that name it.
#pragma once

#include "core/program.h"

namespace eventide {

// Adds the gates that are needed and changes the targets of the events they notify. Gates wait too:
// what they wait on may need gates in turn.
absl::Status AddGates(const Graph& graph, Program& program);

}  // namespace eventide
