// What a grid's tasks move, from the graph alone: enough to place and to explain, not to predict
// times.
#pragma once

#include <cstdint>

#include "core/program.h"

namespace eventide {

struct GridCost {
  int64_t max_tasks = 0;     // of one layer, at the symbols' maxima
  int64_t weight_bytes = 0;  // of one layer, read by the grid
  bool ragged = false;  // tasks of one grid differ in length, by data that only the device knows
};

GridCost CostOf(const Program& program, int grid);

}  // namespace eventide
