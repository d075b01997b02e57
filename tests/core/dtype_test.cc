#include "core/dtype.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/support/test.h"

using namespace eventide;

namespace {

// The nearest of all 65,536 values of a 16-bit type, ties to the even pattern: the definition,
// slowly.
template <typename Decode>
uint16_t Nearest(float x, Decode decode) {
  uint16_t best = 0;
  double best_error = std::numeric_limits<double>::infinity();
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const double value = decode(uint16_t(bits));
    if (!std::isfinite(value) || std::signbit(value) != std::signbit(x)) continue;
    const double error = std::abs(value - double(x));
    if (error < best_error || (error == best_error && bits % 2 == 0)) {
      best_error = error;
      best = uint16_t(bits);
    }
  }
  return best;
}

}  // namespace

TEST_CASE("Every float16 and bfloat16 survives the way through float32") {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float half = F16ToF32(uint16_t(bits));
    if (std::isnan(half)) {
      REQUIRE(std::isnan(F16ToF32(F32ToF16(half))));
    } else {
      REQUIRE(F32ToF16(half) == bits);
    }
    const float brain = BF16ToF32(uint16_t(bits));
    if (std::isnan(brain)) {
      REQUIRE(std::isnan(BF16ToF32(F32ToBF16(brain))));
    } else {
      REQUIRE(F32ToBF16(brain) == bits);
    }
  }
}

TEST_CASE("float16 has the values that its definition gives") {
  CHECK(F16ToF32(0x3c00) == 1.0f);
  CHECK(F16ToF32(0xc000) == -2.0f);
  CHECK(F16ToF32(0x7bff) == 65504.0f);
  CHECK(F16ToF32(0x0001) == 0x1p-24f);
  CHECK(F16ToF32(0x0400) == 0x1p-14f);
  CHECK(F16ToF32(0x7c00) == std::numeric_limits<float>::infinity());
  CHECK(std::signbit(F16ToF32(0x8000)));
}

TEST_CASE("Rounding to 16 bits is to nearest, ties to even") {
  std::vector<float> inputs = {1.0f + 0x1p-11f,
                               1.0f + 0x1p-8f,
                               1.0f + 3 * 0x1p-11f,
                               0x1p-25f,
                               0x1.8p-25f,
                               3 * 0x1p-26f,
                               -0x1.004p-14f,
                               0x1.ffcp-15f,
                               65503.9f,
                               2049.0f,
                               2051.0f,
                               1e-30f,
                               0.1f,
                               -3.14159265f,
                               0x1.01p0f,
                               0x1.03p0f};
  for (float x : inputs) {
    INFO(x);
    CHECK(F32ToF16(x) == Nearest(x, F16ToF32));
    CHECK(F32ToBF16(x) == Nearest(x, BF16ToF32));
  }
  CHECK(F32ToF16(65519.996f) == 0x7bff);
  CHECK(F32ToF16(65520.0f) == 0x7c00);
  CHECK(F32ToF16(-1e30f) == 0xfc00);
  CHECK(F32ToBF16(std::numeric_limits<float>::max()) == 0x7f80);
}

TEST_CASE("Arrays convert like single values, from and to unaligned memory") {
  const float in[3] = {1.5f, -0.1f, 70000.0f};
  unsigned char raw[13];
  std::memcpy(raw + 1, in, sizeof(in));
  unsigned char out[7];
  ConvertElements(DType::kF32, raw + 1, DType::kBF16, out + 1, 3);
  for (int i = 0; i < 3; ++i) {
    uint16_t bits;
    std::memcpy(&bits, out + 1 + 2 * i, 2);
    CHECK(bits == F32ToBF16(in[i]));
  }
  unsigned char half[7];
  ConvertElements(DType::kBF16, out + 1, DType::kF16, half + 1, 3);
  uint16_t last;
  std::memcpy(&last, half + 5, 2);
  CHECK(last == 0x7c00);
}

TEST_CASE("Names of element types read back as the types") {
  for (int i = 0; i <= int(DType::kBool); ++i) {
    CHECK(DTypeFromName(DTypeName(DType(i))) == DType(i));
    CHECK(DTypeSize(DType(i)) >= 1);
  }
  CHECK(!DTypeFromName("float17"));
}
