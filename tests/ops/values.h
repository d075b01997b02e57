// Random inputs and float64 comparisons for tests of ops.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "device/dtype.h"

namespace eventide {

class RandomValues {
 public:
  explicit RandomValues(uint64_t seed) : engine_(seed) {}

  double Normal(double deviation = 1.0) { return deviation * normal_(engine_); }
  int Below(int n) { return static_cast<int>(engine_() % static_cast<uint64_t>(n)); }
  int Between(int low, int high) { return low + Below(high - low + 1); }

  // Values that the storage type holds exactly.
  template <class T>
  std::vector<T> Normals(size_t count, double deviation = 1.0, double mean = 0.0) {
    std::vector<T> values(count);
    for (T& v : values) v = Storage<T>::From(static_cast<float>(mean + Normal(deviation)));
    return values;
  }

 private:
  std::mt19937_64 engine_;
  std::normal_distribution<double> normal_;
};

// The largest |got - want| / bound(want), with NaN counted as infinite.
struct WorstError {
  double ratio = 0;
  void Add(double got, double want, double bound) {
    const double r = std::abs(got - want) / bound;
    ratio = std::isnan(r) ? HUGE_VAL : std::max(ratio, r);
  }
};

}  // namespace eventide
