// Storage types of tensors on the device, and their conversions to and from float. BF16 rounds to
// nearest even and keeps NaN.
#pragma once

#include "device/base.h"

namespace eventide {

struct BF16 {
  u16 bits;
};
struct F16 {
  u16 bits;
};

EVT_FN float ToFloat(BF16 v) { return BitsFloat(static_cast<u32>(v.bits) << 16); }
EVT_FN float ToFloat(F16 v) { return HalfToFloat(v.bits); }
EVT_FN float ToFloat(float v) { return v; }

template <class T>
struct Storage;
template <>
struct Storage<BF16> {
  static constexpr int kVariant = 0;  // ProgramKind::variant
  static EVT_FN BF16 From(float f) {
    return {FloatToBrain(f)};
  }
};
template <>
struct Storage<F16> {
  static constexpr int kVariant = 1;
  static EVT_FN F16 From(float f) { return {FloatToHalf(f)}; }
};
template <>
struct Storage<float> {
  static constexpr int kVariant = 2;
  static EVT_FN float From(float f) { return f; }
};

}  // namespace eventide
