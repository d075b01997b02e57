// The words every freestanding header starts from: EVT_FN, sized integers, coordinates. Read by the host
// compiler, by the simulator's build and by NVRTC; includes nothing.
#pragma once

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define EVT_FN __device__ __forceinline__
// Before a loop that the compiler would unroll although nothing is gained: code size is compile time, and
// every user waits for it. A macro, since host compilers would warn of the pragma.
#define EVT_ROLLED _Pragma("unroll 1")
#else
// Always inlined: the same function is compiled for several instruction sets into one binary, and a
// shared out-of-line copy could be the wrong one (cmake/ops.cmake).
#define EVT_FN inline __attribute__((always_inline))
#define EVT_ROLLED
#endif

namespace eventide {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i32 = int;
using i64 = long long;

static_assert(sizeof(u16) == 2 && sizeof(u32) == 4 && sizeof(u64) == 8, "sizes both sides rely on");

inline constexpr int kMaxCoords = 3;     // coordinates of a task grid, not counting the layer
inline constexpr int kMaxEventDims = 4;  // of an event tensor: a layer and as many as a task has coordinates
inline constexpr int kMaxOperands = 16;  // tensors one op may name
inline constexpr int kMaxSymbols = 16;
inline constexpr int kMaxDims = 64;      // derived dims a program evaluates once per step
inline constexpr int kMaxParamBytes = 96;
inline constexpr u32 kPageBytes = 16384;
inline constexpr int kLanes = 2;             // of pages: weights and old KV; activations
enum Lane : u32 { kLaneStream = 0, kLaneInput = 1 };
inline constexpr i32 kMaxPieces = 128;       // separate blocks that one page may be filled from
inline constexpr u32 kScratchBytes = 23680;  // memory shared by the threads of a compute role
inline constexpr u32 kMemoBytes = 320;       // likewise, and kept from task to task within a step
inline constexpr u32 kPreparedTasks = 4;     // at most so many tasks are prepared at a time
inline constexpr u32 kPreparedBytes = 144;   // of one of them: what Prepare leaves for Input and Compute
// Of both together.
inline constexpr u32 kKeptBytes = kMemoBytes + kPreparedTasks * kPreparedBytes;
// Shared memory of a GPU's worker that is neither pages nor scratch, at most.
inline constexpr u32 kWorkerStateBytes = 10752;
// Elements that workers poll are this far apart, so that two of them never share a cache sector.
inline constexpr u32 kEventStrideBytes = 32;

// A task of a grid: its layer and its coordinates.
struct Coord {
  i32 layer;
  i32 at[kMaxCoords];
};

template <class T>
EVT_FN constexpr T Min(T a, T b) {
  return a < b ? a : b;
}
template <class T>
EVT_FN constexpr T Max(T a, T b) {
  return a > b ? a : b;
}
EVT_FN constexpr i32 CeilDiv(i32 a, i32 b) { return (a + b - 1) / b; }
EVT_FN constexpr i32 RoundUp(i32 a, i32 b) { return CeilDiv(a, b) * b; }
// Division that rounds toward minus infinity; b > 0. Edge maps are written with it.
EVT_FN constexpr i32 FloorDiv(i32 a, i32 b) {
  const u32 sign = static_cast<u32>(a >> 31);  // ~(~a / b) where a < 0: one unsigned division
  return static_cast<i32>((static_cast<u32>(a) ^ sign) / static_cast<u32>(b) ^ sign);
}
EVT_FN constexpr i32 FloorMod(i32 a, i32 b) { return a - FloorDiv(a, b) * b; }

// --- scalar arithmetic whose instructions differ between targets ---------------------------------------
#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
EVT_FN i32 CountBits(u32 v) { return __popc(v); }
EVT_FN u32 FloatBits(float f) { return __float_as_uint(f); }
// The same value, of which the compiler knows nothing: a condition on it does not become two copies of the
// loop round it (code size is compile time).
EVT_FN i32 Opaque(i32 v) {
  asm volatile("" : "+r"(v));
  return v;
}
EVT_FN float BitsFloat(u32 u) { return __uint_as_float(u); }
// Nearest even; NaN becomes some NaN.
EVT_FN u16 FloatToBrain(float f) {
  u16 b;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(b) : "f"(f));
  return b;
}
// a * b + c rounded once, on every target: what must have the same bits everywhere is written with it.
EVT_FN float Fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
// Products and sums the compiler must not contract into fma.
EVT_FN float Multiply(float a, float b) { return __fmul_rn(a, b); }
EVT_FN float Add(float a, float b) { return __fadd_rn(a, b); }
EVT_FN float SquareRoot(float f) { return __fsqrt_rn(f); }
EVT_FN float Divide(float a, float b) { return __fdiv_rn(a, b); }
// 2^f with a relative error of about 2^-22; 0 for -inf.
EVT_FN float Exp2(float f) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(f));
  return r;
}
// log2 of a normal positive number, with an absolute error of about 2^-22 near 1, relative elsewhere.
EVT_FN float Log2(float f) {
  float r;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(f));
  return r;
}
EVT_FN float HalfToFloat(u16 h) {
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
  return f;
}
EVT_FN u16 FloatToHalf(float f) {
  u16 h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
  return h;
}
#else
EVT_FN i32 CountBits(u32 v) { return __builtin_popcount(v); }
EVT_FN u32 FloatBits(float f) { return __builtin_bit_cast(u32, f); }
EVT_FN i32 Opaque(i32 v) { return v; }
EVT_FN float BitsFloat(u32 u) { return __builtin_bit_cast(float, u); }
EVT_FN u16 FloatToBrain(float f) {
  const u32 bits = FloatBits(f);
  if (f != f) return static_cast<u16>((bits >> 16) | 0x40u);
  return static_cast<u16>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
EVT_FN float Fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
EVT_FN float Multiply(float a, float b) { return a * b; }  // built with -ffp-contract=off
EVT_FN float Add(float a, float b) { return a + b; }
EVT_FN float SquareRoot(float f) { return __builtin_sqrtf(f); }
EVT_FN float Divide(float a, float b) { return a / b; }
// 2^f: round to the nearest integer, then a degree-6 Taylor-like minimax polynomial on [-0.5, 0.5]
// (relative error < 2e-7), then the exponent is added. Written without branches, so that it vectorises.
EVT_FN float Exp2(float f) {
  const float clamped = f < -126.0f ? -126.0f : (f > 127.0f ? 127.0f : f);
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const float shifted = clamped + magic;
  const float x = clamped - (shifted - magic);
  float p = 1.5403530393381609e-4f;  // ln(2)^k / k!, k = 6 .. 0
  p = Fma(p, x, 1.3333558146428443e-3f);
  p = Fma(p, x, 9.6181291076284772e-3f);
  p = Fma(p, x, 5.5504108664821580e-2f);
  p = Fma(p, x, 2.4022650695910072e-1f);
  p = Fma(p, x, 6.9314718055994531e-1f);
  p = Fma(p, x, 1.0f);
  const float r = BitsFloat(FloatBits(p) + (FloatBits(shifted) << 23));
  return f < -126.0f ? 0.0f : r;
}
// log2 of a normal positive number: the exponent, and the series of atanh at (m - 1) / (m + 1) for the
// mantissa m in [sqrt(1/2), sqrt(2)) (error < 2e-7).
EVT_FN float Log2(float f) {
  const u32 bits = FloatBits(f) - 0x3f3504f3u;  // sqrt(1/2)
  const i32 exponent = static_cast<i32>(bits) >> 23;
  const float m = BitsFloat((bits & 0x007fffffu) + 0x3f3504f3u);
  const float s = (m - 1.0f) / (m + 1.0f);
  const float q = s * s;
  float p = 0.32059889f;  // 2 / ln(2) / k, k = 9, 7 .. 1
  p = Fma(p, q, 0.41219858f);
  p = Fma(p, q, 0.57707801f);
  p = Fma(p, q, 0.96179669f);
  p = Fma(p, q, 2.8853901f);
  return Fma(p, s, static_cast<float>(exponent));
}
EVT_FN float HalfToFloat(u16 h) {
  const u32 sign = static_cast<u32>(h & 0x8000u) << 16;
  const u32 magnitude = static_cast<u32>(h & 0x7fffu) << 13;
  const u32 exponent = magnitude & 0x0f800000u;
  if (exponent == 0x0f800000u) return BitsFloat(sign | magnitude | 0x7f800000u);  // inf, NaN
  // 2^112 rebases the exponent; subnormals come out right because the product is exact.
  const float scaled = BitsFloat(magnitude) * 5.192296858534828e33f;
  return BitsFloat(FloatBits(scaled) | sign);
}
EVT_FN u16 FloatToHalf(float f) {
  const u32 bits = FloatBits(f);
  const u32 sign = (bits >> 16) & 0x8000u;
  const u32 magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<u16>(sign | 0x7fffu);    // NaN
  if (magnitude >= 0x477ff000u) return static_cast<u16>(sign | 0x7c00u);   // rounds to infinity
  if (magnitude < 0x38800000u) {
    // Subnormal: adding 0.5 leaves the value, rounded to nearest even, in the low mantissa bits.
    const float sum = BitsFloat(magnitude) + 0.5f;
    return static_cast<u16>(sign | (FloatBits(sum) - 0x3f000000u));
  }
  const u32 rounded = magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<u16>(sign | (rounded >> 13));
}
#endif

}  // namespace eventide
