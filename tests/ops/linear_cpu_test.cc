// Linears with every epilogue against float64 products of the stored values, at sizes around all
// tiles.
#include "tests/ops/linear_case.h"

namespace eventide {
namespace {

TEST_CASE("linears agree with float64 for every epilogue and odd sizes") {
  for (const int tokens : {0, 1, 8, 9, 32, 33, 70}) {
    CheckLinear<BF16>(HostBackends(), {tokens, 33, 172, true, true, Linear::kStore});
    CheckLinear<BF16>(HostBackends(), {tokens, 172, 96, false, false, Linear::kResidual});
    CheckLinear<F16>(HostBackends(), {tokens, 64, 31, true, false, Linear::kSiluMul});
    CheckLinear<float>(HostBackends(), {tokens, 257, 16, false, false, Linear::kLogits});
  }
  CheckLinear<BF16>(HostBackends(), {5, 31, 2048, false, true, Linear::kStore});
  CheckLinear<float>(HostBackends(), {3, 48, 1000, true, true, Linear::kSiluMul});
  CheckLinear<F16>(HostBackends(), {2, 1, 1, false, true, Linear::kLogits});
  CheckLinear<BF16>(HostBackends(), {33, 20, 130, true, true, Linear::kResidual});
}

TEST_CASE("a token's linear has the same bits alone and in any company") {
  const LinearData<BF16> all({70, 96, 300, true, true, Linear::kStore});
  const std::vector<i32> expected =
      LinearCase<BF16>({"cpu", BestCpuIsa(), 1, "static"}, all).Bits();
  for (const OpBackend& backend : HostBackends()) {
    for (const int tokens : {1, 7, 8, 31, 33}) {
      LinearData<BF16> some = all;
      some.s.tokens = tokens;
      const std::vector<i32> bits = LinearCase<BF16>(backend, some).Bits();
      REQUIRE(std::equal(bits.begin(), bits.begin() + tokens * 96, expected.begin()));
    }
  }
}

}  // namespace
}  // namespace eventide
