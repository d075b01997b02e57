// Sixteen floats in one AVX-512 register (x86-64-v4). See cpu_simd.h.
#pragma once

#include <immintrin.h>

#include "device/arch/cpu.h"
#include "device/arch/cpu_simd.h"

namespace eventide {

template <>
struct Simd<kCpuV4> {
  static constexpr int kBlock = 8;
  struct V {
    __m512 v;
  };
  static EVT_FN V Zero() { return {_mm512_setzero_ps()}; }
  static EVT_FN V Load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static EVT_FN V Convert(const float* p) { return Load(p); }
  static EVT_FN V Convert(const BF16* p) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
  }
  static EVT_FN V Convert(const F16* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
  }
  static EVT_FN void Store(float* p, V v) { _mm512_storeu_ps(p, v.v); }
  static EVT_FN V Broadcast(float f) { return {_mm512_set1_ps(f)}; }
  static EVT_FN V Fma(V a, V b, V c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
  static EVT_FN V Add(V a, V b) { return {_mm512_add_ps(a.v, b.v)}; }
};

}  // namespace eventide
