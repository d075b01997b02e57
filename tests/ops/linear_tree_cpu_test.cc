// Linears on the host backends have the bits of the tree that is written out in linear_tree.h.
#include "tests/ops/linear_tree.h"

#include <cmath>

namespace eventide {
namespace {

// A step on the CPU: fused multiply-adds in the order of k.
struct FmaChain {
  template <class T>
  std::vector<float> operator()(const std::vector<T>& a, const std::vector<T>& b, int k, int first,
                                int steps) const {
    const size_t rows = a.size() / static_cast<size_t>(k), columns = b.size() / static_cast<size_t>(k);
    std::vector<float> out(rows * columns, 0.0f);
    for (size_t r = 0; r < rows; ++r) {
      for (size_t c = 0; c < columns; ++c) {
        float& sum = out[r * columns + c];
        for (int i = first; i < first + steps * 16; ++i) {
          sum = std::fma(ToFloat(a[r * static_cast<size_t>(k) + i]),
                         ToFloat(b[c * static_cast<size_t>(k) + i]), sum);
        }
      }
    }
    return out;
  }
};

TEST_CASE("linears have the bits of the reference tree for every width") {
  for (const int tokens : {1, 2, 7, 8, 9, 16, 17, 24, 31, 32, 33, 40, 64, 65}) {
    for (const LinearShape& shape : {LinearShape{tokens, 33, 172}, LinearShape{tokens, 48, 400}}) {
      CAPTURE(tokens, shape.k);
      const LinearData<BF16> data(shape);
      CHECK(TreeDifferences(HostBackends()[0], data, FmaChain()) == 0);
    }
  }
  const LinearData<F16> half({33, 64, 257});
  const LinearData<float> whole({33, 64, 257});
  for (const OpBackend& backend : HostBackends()) {
    INFO(backend.name);
    CHECK(TreeDifferences(backend, half, FmaChain()) == 0);
    CHECK(TreeDifferences(backend, whole, FmaChain()) == 0);
  }
}

TEST_CASE("a tree whose segments are added in another order has other bits") {
  std::vector<int> order = LeftToRight();
  std::swap(order[2], order[6]);
  const LinearData<BF16> data({9, 48, 400});
  CHECK(TreeDifferences(HostBackends()[0], data, FmaChain(), order) > 50);
}

}  // namespace
}  // namespace eventide
