// Rotary position embedding tables. Dimension i of a head is rotated with dimension i + head_dim
// / 2.
#pragma once

#include <vector>

#include "models/config.h"

namespace eventide {

// head_dim / 2 angles per position, slowest last. Formulas: theta^(-2i / head_dim); linear divides
// all by the factor; llama3 divides those whose wavelength exceeds original / low_freq_factor,
// keeps those below original / high_freq_factor, and blends in between.
std::vector<double> RopeInverseFrequencies(const RopeConfig& rope, int head_dim);

// cos and sin of position * inverse frequency, computed in double and rounded once.
struct RopeTable {
  int positions = 0;
  int half = 0;            // head_dim / 2
  std::vector<float> cos;  // [positions][half]
  std::vector<float> sin;  // [positions][half]
};

RopeTable BuildRopeTable(const RopeConfig& rope, int head_dim, int positions);

// The same for positions [first, first + count), so that a long table can be built in parts.
RopeTable BuildRopeTable(const RopeConfig& rope, int head_dim, int first, int count);

}  // namespace eventide
