// Linears with every epilogue against float64 products of the stored values, at sizes around all
// tiles.
#include "tests/ops/linear_case.h"

namespace eventide {
namespace {

TEST_CASE("linears agree with float64 for every epilogue and odd sizes") {
  for (const int tokens : {0, 1, 8, 9, 32, 33, 70}) {
    CheckLinear<BF16>(HostBackends(), {tokens, 33, 172, true, true, LinearParams::kStore});
    CheckLinear<BF16>(HostBackends(), {tokens, 172, 96, false, false, LinearParams::kResidual});
    CheckLinear<F16>(HostBackends(), {tokens, 64, 31, true, false, LinearParams::kSiluMul});
    CheckLinear<float>(HostBackends(), {tokens, 257, 16, false, false, LinearParams::kLogits});
  }
  for (const int tokens : {1, 9, 17, 33, 70}) {
    CheckLinear<BF16>(HostBackends(), {tokens, 33, 172, true, true, LinearParams::kStore, 16, 2});
    CheckLinear<BF16>(HostBackends(), {tokens, 96, 700, false, false, LinearParams::kResidual, 16, 4});
    CheckLinear<F16>(HostBackends(), {tokens, 64, 31, true, false, LinearParams::kSiluMul, 16});
    CheckLinear<float>(HostBackends(), {tokens, 257, 400, false, false, LinearParams::kLogits, 16, 3});
  }
  // Teams: one token too many for a task alone, for two, for a whole tile of a team.
  for (const int tokens : {63, 64, 65, 129, 256, 257, 300}) {
    CheckLinear<BF16>(HostBackends(), {tokens, 120, 48, true, true, LinearParams::kStore, 32, 1, 4});
    CheckLinear<BF16>(HostBackends(), {tokens, 128, 40, false, false, LinearParams::kResidual, 16, 2, 4});
    CheckLinear<F16>(HostBackends(), {tokens, 64, 31, true, false, LinearParams::kSiluMul, 16, 2, 2});
    CheckLinear<float>(HostBackends(), {tokens, 250, 16, false, false, LinearParams::kLogits, 32, 2, 4});
  }
  CheckLinear<BF16>(HostBackends(), {5, 31, 2048, false, true, LinearParams::kStore});
  CheckLinear<float>(HostBackends(), {3, 48, 1000, true, true, LinearParams::kSiluMul});
  CheckLinear<F16>(HostBackends(), {2, 1, 1, false, true, LinearParams::kLogits});
  CheckLinear<BF16>(HostBackends(), {33, 20, 130, true, true, LinearParams::kResidual});
}

TEST_CASE("a token's linear has the same bits alone and in any company") {
  const LinearData<BF16> all({70, 96, 300, true, true, LinearParams::kStore});
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

TEST_CASE("a linear's bits do not depend on the height of its tiles") {
  LinearData<BF16> data({40, 96, 300, true, true, LinearParams::kStore});
  for (const OpBackend& backend : HostBackends()) {
    data.s.tile_rows = 32;
    const std::vector<i32> tall = LinearCase<BF16>(backend, data).Bits();
    data.s.tile_rows = 16;
    REQUIRE(LinearCase<BF16>(backend, data).Bits() == tall);
  }
}

}  // namespace
}  // namespace eventide
