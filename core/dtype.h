// Element types: names, sizes, and exact conversions between float and the 16-bit floats.
// Rounding is to nearest, ties to even; NaN stays NaN (quiet), infinities and denormals are kept.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace eventide {

enum class DType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kF64,
  kF8E4M3,
  kF8E5M2,
  kI64,
  kI32,
  kI16,
  kI8,
  kU64,
  kU32,
  kU16,
  kU8,
  kBool,
};

// Bytes of one element.
size_t DTypeSize(DType type);

// "float32", "bfloat16", ...: the names that Hugging Face configurations and --dtype use.
const char* DTypeName(DType type);

// The inverse of DTypeName; nothing for a name that is not one of them.
std::optional<DType> DTypeFromName(absl::string_view name);

// The types that weights are computed with: float32, float16, bfloat16.
inline bool IsWeightDType(DType type) {
  return type == DType::kF32 || type == DType::kF16 || type == DType::kBF16;
}

inline float BF16ToF32(uint16_t bits) {
  return std::bit_cast<float>(uint32_t{bits} << 16);
}

inline uint16_t F32ToBF16(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t((bits >> 16) | 0x40u);
  return uint16_t((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline float F16ToF32(uint16_t half) {
  const uint32_t sign = uint32_t{half & 0x8000u} << 16;
  const uint32_t exponent = (half >> 10) & 0x1fu;
  const uint32_t fraction = half & 0x3ffu;
  if (exponent == 0x1f) {
    return std::bit_cast<float>(sign | 0x7f800000u | (fraction << 13) | (fraction ? 0x400000u : 0));
  }
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
  // Zero and denormals: the value is fraction * 2^-24, which float holds exactly.
  const float magnitude = float(fraction) * 0x1p-24f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
}

inline uint16_t F32ToF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = uint16_t((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7e00u | uint16_t((magnitude >> 13) & 0x1ffu);
  // 65520 is halfway between the largest finite half and the next step: it rounds to infinity.
  if (magnitude >= 0x477ff000u) return sign | 0x7c00u;
  if (magnitude < 0x38800000u) {
    // Below 2^-14: adding 0.5 leaves the result, rounded to multiples of 2^-24, in the low bits.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return sign | uint16_t(std::bit_cast<uint32_t>(shifted) - 0x3f000000u);
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return sign | uint16_t((rounded - 0x38000000u) >> 13);
}

// Converts between float32, float16 and bfloat16 (IsWeightDType holds for both). From a 16-bit type
// to the other one rounds once. `out` must not overlap `in` unless the types are equal.
void ConvertElements(DType from, const void* in, DType to, void* out, size_t count);

}  // namespace eventide
