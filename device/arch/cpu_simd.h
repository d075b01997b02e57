// Sixteen floats at once: the one vector word of the CPU target, in plain C++ here and with intrinsics in
// cpu_avx2.h and cpu_avx512.h, which the build includes for those instruction sets only. Lanes never mix,
// and every product is added with one rounding, so all instruction sets give the same bits.
#pragma once

#include "device/dtype.h"

namespace eventide {

template <int kIsa>
struct Simd {
  static constexpr int kBlock = 2;  // accumulators that stay in registers
  struct V {
    float lane[16];
  };
  static EVT_FN V Zero() { return V{}; }
  static EVT_FN V Load(const float* p) {
    V v;
    for (int i = 0; i < 16; ++i) v.lane[i] = p[i];
    return v;
  }
  template <class T>
  static EVT_FN V Convert(const T* p) {
    V v;
    for (int i = 0; i < 16; ++i) v.lane[i] = ToFloat(p[i]);
    return v;
  }
  static EVT_FN void Store(float* p, const V& v) {
    for (int i = 0; i < 16; ++i) p[i] = v.lane[i];
  }
  static EVT_FN V Broadcast(float f) {
    V v;
    for (int i = 0; i < 16; ++i) v.lane[i] = f;
    return v;
  }
  static EVT_FN V Fma(const V& a, const V& b, const V& c) {
    V v;
    for (int i = 0; i < 16; ++i) v.lane[i] = eventide::Fma(a.lane[i], b.lane[i], c.lane[i]);
    return v;
  }
  static EVT_FN V Add(const V& a, const V& b) {
    V v;
    for (int i = 0; i < 16; ++i) v.lane[i] = a.lane[i] + b.lane[i];
    return v;
  }
};

}  // namespace eventide
