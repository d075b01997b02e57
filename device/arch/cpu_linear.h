// Products of a tile of 16 or 32 packed rows with up to kTokens tokens on the CPU (port_example.h). Rows are the
// vector lanes: a fragment lies [k][row], so each output is one chain of fused multiply-adds in k order.
#pragma once

#include "device/arch/cpu_simd.h"
#include "device/base.h"
#include "device/layout.h"

namespace eventide {

template <int kIsa, class T, int kTokens>
class CpuLinearTile {
 public:
  template <class W>
  EVT_FN CpuLinearTile(W&, i32 blocks, i32 tokens, bool) : blocks_(blocks), tokens_(tokens) {}

  // The one thread finishes all rows, and asks for nothing ahead.
  struct Nothing {};
  template <class E>
  EVT_FN i32 RowOf(const E&, i32 first) const {
    return first;
  }
  template <class E>
  EVT_FN Nothing First(const E&, i32) const {
    return {};
  }

  template <class W>
  EVT_FN void Products(W& w, i32 steps, i32 weight_steps, i32 input_steps, i32, bool keeps) {
    for (i32 step = 0; step < steps;) {
      // Both divide each other, so that the shorter page says how far to go.
      const i32 n = Min(Min(weight_steps, input_steps), steps - step);
      if (step % weight_steps == 0) weights_ = w.Take(kLaneStream).Piece(0);
      const T* weights = reinterpret_cast<const T*>(weights_) +
                         static_cast<i64>(step % weight_steps) * kSegments * blocks_ * kFragment;
      if (step % input_steps == 0) {
        const auto page = w.Take(kLaneInput);
        for (i32 group = 0; group * 8 < tokens_; ++group) input_[group] = page.Piece(group);
      }
      Page(weights, (step % input_steps) * kSegments * 128, n, step == 0);
      step += n;
      if (step % weight_steps == 0 || step == steps) w.Drop(kLaneStream);
      if (!keeps && (step % input_steps == 0 || step == steps)) w.Drop(kLaneInput);
    }
    if (keeps) w.Again(kLaneInput);
  }

  EVT_FN i32 AtOnce() const { return 1; }
  template <class W, class E>
  EVT_FN void Finish(W&, const E& epilogue, i32 first, Nothing, i32, i32) {
    for (i32 block = 0; block < blocks_; ++block) {
      typename E::Row rows[16];
      for (i32 row = 0; row < 16; ++row) rows[row] = epilogue.At(first + block * 16 + row);
      for (i32 token = 0; token < tokens_; ++token) {
        float y[16];
        typename S::V total = S::Load(Sum(0, block, token));
        for (i32 segment = 1; segment < kSegments; ++segment) {
          total = S::Add(total, S::Load(Sum(segment, block, token)));
        }
        S::Store(y, total);
        for (i32 row = 0; row < 16; ++row) y[row] = epilogue.Value(rows[row], token, y[row]);
        typename E::Carry carry = epilogue.None();
        for (i32 row = 0; row < 16; ++row) {
          const typename E::Carry mine = epilogue.Emit(rows[row], token, y[row], y[row ^ 8],
                                                       epilogue.Load(rows[row], token));
          carry = epilogue.Combine(carry, mine);
        }
        if (epilogue.Carries()) epilogue.Reduced(rows[0], token, carry);
      }
    }
  }

 private:
  using S = Simd<kIsa>;

  EVT_FN void Page(const T* w, i32 offset, i32 steps, bool first) {
    started_ = !first;
    for (i32 group = 0; group * 8 < tokens_; ++group) {
      const T* x = reinterpret_cast<const T*>(input_[group]) + offset;
      const i32 count = Min(8, tokens_ - group * 8);
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
  }

  EVT_FN float* Sum(i32 segment, i32 block, i32 token) {
    return sums_ + ((segment * kMaxBlocks + block) * kTokens + token) * 16;
  }

  // kCount tokens from `token` on; x points at the first one's row of a core matrix.
  template <int kCount>
  EVT_FN void Block(const T* w, const T* x, i32 steps, i32 token) {
    for (i32 segment = 0; segment < kSegments; ++segment) {
      for (i32 block = 0; block < blocks_; ++block) {
        typename S::V sum[kCount];
        for (i32 t = 0; t < kCount; ++t) {
          sum[t] = started_ ? S::Load(Sum(segment, block, token + t)) : S::Zero();
        }
        for (i32 step = 0; step < steps; ++step) {
          const i32 at = step * kSegments + segment;
          const T* fragment = w + (static_cast<i64>(at) * blocks_ + block) * kFragment;
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

  static constexpr i32 kMaxBlocks = 2;  // of 16 rows

  i32 blocks_, tokens_;
  bool started_ = false;
  const u8* weights_ = nullptr;
  const u8* input_[kTokens / 8];
  alignas(64) float sums_[kSegments * kMaxBlocks * kTokens * 16];
};

}  // namespace eventide
