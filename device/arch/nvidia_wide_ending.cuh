// How a wide pass ends (ops/linear_epilogue.h), straight from the registers that its sums are in: no barrier, no shared
// memory. A lane has rows lane / 4 and lane / 4 + 8 of its warp's 16, of each 8 tokens two neighbours. What goes to
// other linears is turned around by the warp, 8 rows x 8 tokens at a time, into the core matrices that activations are.
#pragma once

#include "device/arch/nvidia_compute.cuh"

namespace eventide {

// 8 x 8 elements of two bytes, of which lane l has elements l % 4 * 2 and the next of row l / 4: of column l / 4.
EVT_FN u32 TransposeMatrix(u32 pair) {
  u32 r;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(pair));
  return r;
}

template <class Mma, class E>
class WideEnding {
 public:
  // row: of the task, the first of the warp's.
  EVT_FN WideEnding(const E& epilogue, i32 row, u32 lane)
      : e_(epilogue), lane_(static_cast<i32>(lane)), row_{e_.At(row + lane_ / 4), e_.At(row + lane_ / 4 + 8)} {
#pragma unroll
    for (i32 h = 0; h < 2; ++h) core_[h] = __shfl_sync(0xffffffffu, row_[h].column, lane_ % 4);
  }

  // sums[n], of kUsed: of tokens n * 8 and following. Units move up as they are finished, so that the code is there once.
  template <i32 kUsed, i32 kUnits>
  EVT_FN void Run(float (&sums)[kUnits][4]) {
    constexpr i32 kAhead = 4;  // units whose residuals are on their way together
    static_assert(kUsed <= kUnits && kUsed % kAhead == 0);
#pragma unroll 1
    for (i32 first = 0; first < e_.tokens; first += kAhead * 8) {
      float loaded[kAhead][4];
#pragma unroll
      for (i32 i = 0; i < kAhead * 4; ++i) loaded[i / 4][i % 4] = e_.Load(row_[i / 2 % 2], TokenOf(first, i));
#pragma unroll
      for (i32 i = 0; i < kAhead * 4; ++i) {
        float& y = sums[i / 4][i % 4];
        y = e_.Total(e_.Value(row_[i / 2 % 2], TokenOf(first, i), y), loaded[i / 4][i % 4]);
      }
#pragma unroll 1
      for (i32 u = 0; u < kAhead; ++u) {
        if (first + u * 8 < e_.tokens) Unit(first + u * 8, sums[0]);
#pragma unroll
        for (i32 i = 0; i < (kUsed - 1) * 4; ++i) sums[i / 4][i % 4] = sums[i / 4 + 1][i % 4];
      }
    }
  }

 private:
  // Of a lane's value i of some units from token `first` on.
  EVT_FN i32 TokenOf(i32 first, i32 i) const { return first + i / 4 * 8 + lane_ % 4 * 2 + i % 2; }

  EVT_FN void Unit(i32 first, const float (&y)[4]) const {
    if (e_.Gates()) {
      Core(0, first, E::Gated(y[0], y[2]), E::Gated(y[1], y[3]));
      return;
    }
#pragma unroll
    for (i32 i = 0; i < 4; ++i) {
      if (row_[i / 2].r < e_.rows && TokenOf(first, i) < e_.tokens) *e_.Float(row_[i / 2], TokenOf(first, i)) = y[i];
    }
    if (!e_.Carries()) return;
    if (e_.Scores()) {
      Best(first, y);
      return;
    }
#pragma unroll
    for (i32 h = 0; h < 2; ++h) Core(h, first, e_.Gain(row_[h], y[2 * h]), e_.Gain(row_[h], y[2 * h + 1]));
    Squares(first, y);
  }

  // Two tokens' values of row h of this lane join a core matrix of activations; columns that are none are zero.
  EVT_FN void Core(i32 h, i32 first, float low, float high) const {
    const u32 pair = TransposeMatrix(row_[h].column < 0 ? 0 : Mma::Pack(low, high));
    if (core_[h] >= 0 && first + lane_ / 4 < e_.tokens) {
      *reinterpret_cast<u32*>(e_.Group(first) + core_[h] + lane_ * 2) = pair;
    }
  }

  // Sums of squares of the 16 rows: neighbours first, as everywhere. Lanes that add the same take turns: first each of
  // a pair takes one token, then one half of the rows.
  EVT_FN void Squares(i32 first, const float (&y)[4]) const {
    const bool odd = lane_ & 4, upper = lane_ & 8;
    float half[2];
#pragma unroll
    for (i32 h = 0; h < 2; ++h) {
      const bool there = row_[h].r < e_.rows;
      const float even_square = there ? Multiply(y[2 * h], y[2 * h]) : 0.0f;
      const float odd_square = there ? Multiply(y[2 * h + 1], y[2 * h + 1]) : 0.0f;
      half[h] = Add(odd ? odd_square : even_square, Other(odd ? even_square : odd_square, 4));
    }
    float sum = Add(upper ? half[1] : half[0], Other(upper ? half[0] : half[1], 8));
    sum = Add(sum, Other(sum, 16));
    sum = Add(sum, Other(sum, 8));
    const i32 token = TokenOf(first, odd ? 1 : 0);
    if (lane_ < 8 && token < e_.tokens) e_.Reduced(row_[0], token, {sum, 0});
  }
  EVT_FN void Best(i32 first, const float (&y)[4]) const {
    typename E::Carry best[2];
#pragma unroll
    for (i32 t = 0; t < 2; ++t) best[t] = e_.Combine(e_.Scored(row_[0], y[t]), e_.Scored(row_[1], y[2 + t]));
    const bool odd = lane_ & 4;
    typename E::Carry mine = odd ? best[1] : best[0], other = odd ? best[0] : best[1];
#pragma unroll 1
    for (u32 offset = 4; offset < 32; offset *= 2) {
      other.value = Other(other.value, offset);
      other.id = __shfl_xor_sync(0xffffffffu, other.id, offset);
      other = mine = e_.Combine(mine, other);
    }
    const i32 token = TokenOf(first, odd ? 1 : 0);
    if (lane_ < 8 && token < e_.tokens) e_.Reduced(row_[0], token, mine);
  }
  static EVT_FN float Other(float v, u32 offset) { return __shfl_xor_sync(0xffffffffu, v, offset); }

  const E e_;
  const i32 lane_;
  const typename E::Row row_[2];
  i32 core_[2];  // where the core matrices of both begin in a group of activations; < 0: nowhere
};

}  // namespace eventide
