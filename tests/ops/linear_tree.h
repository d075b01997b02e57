// The reduction tree of a linear, written out: K in kSegments contiguous segments, each summed from zero in
// steps of 16, segments added left to right. What a step of 16 is belongs to the target: a chain of fused
// multiply-adds on the CPU, mma.sync m16n8k16 on a GPU. A chain is
//   chain(a, b, k, first, steps) -> float[a rows][b rows]
// over row-major operands of k columns, from column `first` on; a's rows are a multiple of 16, b's of 8.
#pragma once

#include "tests/ops/linear_case.h"

namespace eventide {

// Products of a linear's weights and input: [row][token], padded to whole fragments. `order` is that in
// which segments are added; anything but 0, 1, ... is a broken tree.
template <class T, class Chain>
std::vector<float> TreeProducts(const LinearData<T>& data, const Chain& chain,
                                const std::vector<int>& order) {
  const LinearShape& s = data.s;
  const int steps = SegmentSteps(s.k), k = steps * 16 * kSegments;
  const auto padded = [&](const std::vector<T>& from, int rows, int unit) {
    std::vector<T> to(static_cast<size_t>(RoundUp(rows, unit)) * static_cast<size_t>(k), T{});
    for (int r = 0; r < rows; ++r)
      std::copy_n(from.begin() + int64_t{r} * s.k, s.k, to.begin() + int64_t{r} * k);
    return to;
  };
  const std::vector<T> weight = padded(data.weight, s.rows, 16), input = padded(data.input, s.tokens, 8);
  std::vector<float> total;
  for (const int segment : order) {
    const std::vector<float> sum = chain(weight, input, k, segment * steps * 16, steps);
    if (total.empty()) {
      total = sum;
      continue;
    }
    for (size_t i = 0; i < sum.size(); ++i) total[i] += sum[i];
  }
  return total;
}

inline std::vector<int> LeftToRight() {
  std::vector<int> order;
  for (int segment = 0; segment < kSegments; ++segment) order.push_back(segment);
  return order;
}

// How many outputs of the op differ from the tree in any bit (zeros may differ in sign).
template <class T, class Chain>
int64_t TreeDifferences(const OpBackend& backend, const LinearData<T>& data, const Chain& chain,
                        const std::vector<int>& order = LeftToRight()) {
  const LinearShape& s = data.s;
  const std::vector<float> tree = TreeProducts(data, chain, order);
  const std::vector<i32> bits = LinearCase<T>(backend, data).Bits();
  const int stride = RoundUp(s.rows, 32), columns = RoundUp(s.tokens, 8);
  int64_t differences = 0;
  for (int t = 0; t < s.tokens; ++t) {
    for (int r = 0; r < s.rows; ++r) {
      const float got = std::bit_cast<float>(bits[static_cast<size_t>(t) * stride + r]);
      differences += !(got == tree[static_cast<size_t>(r) * columns + t]);
    }
  }
  return differences;
}

}  // namespace eventide
