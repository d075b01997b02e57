// Sixteen floats in two AVX2 registers (x86-64-v3). See cpu_simd.h.
#pragma once

#include <immintrin.h>

#include "device/arch/cpu.h"
#include "device/arch/cpu_simd.h"

namespace eventide {

template <>
struct Simd<kCpuV3> {
  static constexpr int kBlock = 4;
  struct V {
    __m256 low, high;
  };
  static EVT_FN V Zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static EVT_FN V Load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static EVT_FN V Convert(const float* p) { return Load(p); }
  static EVT_FN V Convert(const BF16* p) {
    const __m128i* bits = reinterpret_cast<const __m128i*>(p);
    return {Widen(_mm_loadu_si128(bits)), Widen(_mm_loadu_si128(bits + 1))};
  }
  static EVT_FN V Convert(const F16* p) {
    const __m128i* bits = reinterpret_cast<const __m128i*>(p);
    return {_mm256_cvtph_ps(_mm_loadu_si128(bits)), _mm256_cvtph_ps(_mm_loadu_si128(bits + 1))};
  }
  static EVT_FN void Store(float* p, V v) {
    _mm256_storeu_ps(p, v.low);
    _mm256_storeu_ps(p + 8, v.high);
  }
  static EVT_FN V Broadcast(float f) { return {_mm256_set1_ps(f), _mm256_set1_ps(f)}; }
  static EVT_FN V Fma(V a, V b, V c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
  }
  static EVT_FN V Add(V a, V b) {
    return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
  }

 private:
  static EVT_FN __m256 Widen(__m128i bits) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
};

}  // namespace eventide
