// The words every freestanding header starts from: EVT_FN, sized integers, coordinates. Read by the host
// compiler, by the simulator's build and by NVRTC; includes nothing.
#pragma once

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define EVT_FN __device__ __forceinline__
#define EVT_FMAF fmaf
#else
#define EVT_FN inline
#define EVT_FMAF __builtin_fmaf
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
inline constexpr int kMaxOperands = 16;  // tensors one op may name
inline constexpr int kMaxSymbols = 16;
inline constexpr int kMaxDims = 64;      // derived dims a program evaluates once per step
inline constexpr int kMaxParamBytes = 96;
inline constexpr u32 kPageBytes = 16384;
// Elements that workers poll are this far apart, so that two of them never share a cache sector.
inline constexpr u32 kEventStrideBytes = 32;

// a * b + c rounded once, on every target: what must have the same bits everywhere is written with it.
EVT_FN float Fma(float a, float b, float c) { return EVT_FMAF(a, b, c); }
#undef EVT_FMAF

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
EVT_FN constexpr i32 FloorDiv(i32 a, i32 b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }
EVT_FN constexpr i32 FloorMod(i32 a, i32 b) { return a - FloorDiv(a, b) * b; }

}  // namespace eventide
