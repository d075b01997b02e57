#include "models/rope.h"

#include <cmath>

#include "core/status.h"

namespace eventide {
namespace {

// How much of a frequency survives llama3's scaling: 1 keeps it, 1 / factor divides it.
double Llama3Scale(const RopeConfig& rope, double frequency) {
  const double wavelength = 2.0 * M_PI / frequency;
  const double turns = rope.original_max_positions / wavelength;
  if (turns > rope.high_freq_factor) return 1.0;
  if (turns < rope.low_freq_factor) return 1.0 / rope.factor;
  const double blend =
      (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  return (1.0 - blend) / rope.factor + blend;
}

}  // namespace

std::vector<double> RopeInverseFrequencies(const RopeConfig& rope, int head_dim) {
  EVT_CHECK(head_dim > 0 && head_dim % 2 == 0);
  std::vector<double> result(size_t(head_dim) / 2);
  for (size_t i = 0; i < result.size(); ++i) {
    result[i] = std::pow(rope.theta, -2.0 * double(i) / head_dim);
    if (rope.type == RopeType::kLinear) result[i] /= rope.factor;
    if (rope.type == RopeType::kLlama3) result[i] *= Llama3Scale(rope, result[i]);
  }
  return result;
}

RopeTable BuildRopeTable(const RopeConfig& rope, int head_dim, int first, int count) {
  EVT_CHECK(first >= 0 && count >= 0);
  const std::vector<double> frequencies = RopeInverseFrequencies(rope, head_dim);
  RopeTable table{count, head_dim / 2, {}, {}};
  table.cos.reserve(size_t(count) * frequencies.size());
  table.sin.reserve(size_t(count) * frequencies.size());
  for (int position = first; position < first + count; ++position) {
    for (double frequency : frequencies) {
      table.cos.push_back(float(std::cos(position * frequency)));
      table.sin.push_back(float(std::sin(position * frequency)));
    }
  }
  return table;
}

RopeTable BuildRopeTable(const RopeConfig& rope, int head_dim, int positions) {
  return BuildRopeTable(rope, head_dim, 0, positions);
}

}  // namespace eventide
