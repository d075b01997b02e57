// Random sound graphs for the runtime: layers, empty grids, extents that only the device knows,
// outputs read across layers and through grids that may have no tasks. Equal seeds give equal
// graphs. Their ops are checksums (ops/page_sum.h).
#pragma once

#include "core/graph.h"

namespace eventide {

class RuntimeRandom {
 public:
  explicit RuntimeRandom(uint64_t seed) : state_(seed * 2654435761u + 1) {}
  int Below(int n) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<int>((state_ >> 33) % static_cast<uint64_t>(n));
  }
  bool Chance(int percent) { return Below(100) < percent; }

 private:
  uint64_t state_;
};

inline constexpr int kRuntimeSymbols = 2;
inline constexpr int kRuntimeSymbolMax[kRuntimeSymbols] = {6, 4};

Graph RandomRuntimeGraph(uint64_t seed);

}  // namespace eventide
