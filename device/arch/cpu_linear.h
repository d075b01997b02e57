// Products of a tile of 32 packed rows with up to kTokens tokens on the CPU (port_example.h). Rows are the
// vector lanes: a fragment lies [k][row], so each output is one chain of fused multiply-adds in k order.
#pragma once

#include "device/arch/cpu_simd.h"
#include "device/base.h"
#include "device/layout.h"

namespace eventide {

template <int kIsa, class T, int kTokens>
class CpuLinearTile {
 public:
  static constexpr i32 kBlocks = 2;  // of 16 rows

  template <class W>
  EVT_FN explicit CpuLinearTile(W&) {}

  template <class W, class Page>
  EVT_FN void Step(W&, const Page& weights, const Page& input, i32 first, i32 steps, i32 tokens) {
    const T* w = reinterpret_cast<const T*>(weights.Piece(0));
    for (i32 group = 0; group * 8 < tokens; ++group) {
      const T* x = reinterpret_cast<const T*>(input.Piece(group)) + first * kSegments * 128;
      const i32 count = Min(8, tokens - group * 8);
      i32 done = 0;
      if constexpr (S::kBlock >= 8) {
        if (count > 4) {
          Block<8>(w, x, steps, group * 8);
          continue;
        }
      }
      if constexpr (S::kBlock >= 4) {
        for (; done + 2 < count; done += 4) Block<4>(w, x + done * 8, steps, group * 8 + done);
      }
      for (; done + 1 < count; done += 2) Block<2>(w, x + done * 8, steps, group * 8 + done);
      if (done < count) Block<1>(w, x + done * 8, steps, group * 8 + done);
    }
    started_ = true;
  }

  template <class W, class F>
  EVT_FN void Finish(W&, i32 tokens, const F& f) {
    for (i32 token = 0; token < tokens; ++token) {
      for (i32 block = 0; block < kBlocks; ++block) {
        float sum[16];
        typename S::V total = S::Load(Sum(0, block, token));
        for (i32 segment = 1; segment < kSegments; ++segment) {
          total = S::Add(total, S::Load(Sum(segment, block, token)));
        }
        S::Store(sum, total);
        for (i32 row = 0; row < 8; ++row) f(block * 16 + row, token, sum[row], sum[row + 8]);
      }
    }
  }

 private:
  using S = Simd<kIsa>;

  EVT_FN float* Sum(i32 segment, i32 block, i32 token) {
    return sums_ + ((segment * kBlocks + block) * kTokens + token) * 16;
  }

  // kCount tokens from `token` on; x points at the first one's row of a core matrix.
  template <int kCount>
  EVT_FN void Block(const T* w, const T* x, i32 steps, i32 token) {
    for (i32 segment = 0; segment < kSegments; ++segment) {
      for (i32 block = 0; block < kBlocks; ++block) {
        typename S::V sum[kCount];
        for (i32 t = 0; t < kCount; ++t) {
          sum[t] = started_ ? S::Load(Sum(segment, block, token + t)) : S::Zero();
        }
        for (i32 step = 0; step < steps; ++step) {
          const i32 at = step * kSegments + segment;
          const T* fragment = w + (static_cast<i64>(at) * kBlocks + block) * kFragment;
          for (i32 half = 0; half < 2; ++half) {
            const T* core = x + (at * 2 + half) * 64;
            for (i32 k = 0; k < 8; ++k) {
              const typename S::V row = S::Convert(fragment + (half * 8 + k) * 16);
#pragma GCC unroll 8
              for (i32 t = 0; t < kCount; ++t) {
                sum[t] = S::Fma(row, S::Broadcast(ToFloat(core[t * 8 + k])), sum[t]);
              }
            }
          }
        }
        for (i32 t = 0; t < kCount; ++t) S::Store(Sum(segment, block, token + t), sum[t]);
      }
    }
  }

  bool started_ = false;
  alignas(64) float sums_[kSegments * kBlocks * kTokens * 16];
};

}  // namespace eventide
