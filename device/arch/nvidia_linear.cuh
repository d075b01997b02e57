// Products of a tile of 32 packed rows with up to kTokens tokens by tensor cores (mma.sync
// m16n8k16). Each of the eight compute warps sums one segment of K for all rows and tokens, in
// steps of 16; Finish adds the segments left to right through shared memory. Weights' fragments are
// one 16-byte load a lane; core matrices of activations are the B fragments as they lie.
#pragma once

#include "device/arch/nvidia_compute.cuh"

namespace eventide {

static_assert(kSegments == kComputeWarps, "a warp sums one segment");

template <class T>
struct MmaOf;
template <>
struct MmaOf<BF16> {
  static EVT_FN void Run(float (&c)[4], const uint4& a, u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
  }
  // Two values as one register of a fragment, the first in the low half.
  static EVT_FN u32 Pack(float low, float high) {
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
  }
};
template <>
struct MmaOf<F16> {
  static EVT_FN void Run(float (&c)[4], const uint4& a, u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
  }
  // Two values as one register of a fragment, the first in the low half.
  static EVT_FN u32 Pack(float low, float high) {
    u32 r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
  }
};

template <class Port, class T, int kTokens>
class GpuLinearTile {
 public:
  static constexpr i32 kGroups = kTokens / 8;
  static constexpr i32 kBlocks = 2;  // of 16 rows

  template <class W>
  EVT_FN explicit GpuLinearTile(W& w) : thread_(w.thread) {
#pragma unroll
    for (i32 b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (i32 g = 0; g < kGroups; ++g) {
#pragma unroll
        for (i32 i = 0; i < 4; ++i) c_[b][g][i] = 0.0f;
      }
    }
  }

  // Two widths of the inner loop, chosen uniformly: 8 tokens, and all with a branch over unused
  // groups.
  template <class W>
  EVT_FN void Step(W&, const GpuPage& weights, const GpuPage& input, i32 first, i32 steps,
                   i32 tokens) {
    const u32 segment = thread_ / 32;
    const u8* a = weights.data + segment * kBlocks * kFragmentBytes + (thread_ % 32) * 16;
    const u8* b = input.data + (first * kSegments + segment) * 256 + (thread_ % 32) * 4;
    if (tokens <= 8) {
      Multiply<1>(a, b, input.piece_bytes, steps, tokens);
    } else {
      Multiply<kGroups>(a, b, input.piece_bytes, steps, tokens);
    }
  }

  // A group of 8 tokens at a time: 8 segments x 32 rows x 8 tokens of floats are the first 8 KiB of
  // Scratch. The loop over groups is not unrolled, so that f is there once.
  template <class W, class F>
  EVT_FN void Finish(W& w, i32 tokens, const F& f) {
    float* sums = reinterpret_cast<float*>(w.Scratch());
    float4* mine = reinterpret_cast<float4*>(sums) + thread_ / 32 * kBlocks * 32 + (thread_ % 32);
#pragma unroll 1
    for (i32 group = 0; group * 8 < tokens; ++group) {
      if (group > 0) w.Sync();
#pragma unroll
      for (i32 g = 0; g < kGroups; ++g) {
        if (g == group) {
#pragma unroll
          for (i32 block = 0; block < kBlocks; ++block) {
            mine[block * 32] =
                make_float4(c_[block][g][0], c_[block][g][1], c_[block][g][2], c_[block][g][3]);
          }
        }
      }
      w.Sync();
      // Thread (block, lane of the fragment, token parity): rows r and r + 8 of one token.
      if (thread_ >= kBlocks * 64) continue;
      const u32 block = thread_ / 64, lane = thread_ % 64 / 2, parity = thread_ % 2;
      const i32 token = group * 8 + static_cast<i32>(lane % 4 * 2 + parity);
      const float* from = sums + (block * 32 + lane) * 4 + parity;
      float v0 = from[0], v8 = from[2];
#pragma unroll
      for (i32 s = 1; s < kSegments; ++s) {
        v0 = Add(v0, from[s * kBlocks * 128]);
        v8 = Add(v8, from[s * kBlocks * 128 + 2]);
      }
      if (token < tokens) f(static_cast<i32>(block * 16 + lane / 4), token, v0, v8);
    }
  }

 private:
  static constexpr u32 kFragmentBytes = kFragment * sizeof(T);

  template <i32 kUsed>
  EVT_FN void Multiply(const u8* a, const u8* b, u32 piece_bytes, i32 steps, i32 tokens) {
#pragma unroll 2
    for (i32 step = 0; step < steps; ++step) {
      uint4 rows[kBlocks];
#pragma unroll
      for (i32 block = 0; block < kBlocks; ++block) {
        rows[block] = *reinterpret_cast<const uint4*>(a + block * kFragmentBytes);
      }
#pragma unroll
      for (i32 g = 0; g < kUsed; ++g) {
        if (g == 0 || g * 8 < tokens) {
          const u8* core = b + g * piece_bytes;
          const u32 b0 = *reinterpret_cast<const u32*>(core);
          const u32 b1 = *reinterpret_cast<const u32*>(core + 128);
#pragma unroll
          for (i32 block = 0; block < kBlocks; ++block)
            MmaOf<T>::Run(c_[block][g], rows[block], b0, b1);
        }
      }
      a += kSegments * kBlocks * kFragmentBytes;
      b += kSegments * 256;
    }
  }

  u32 thread_;
  float c_[kBlocks][kGroups][4];
};

}  // namespace eventide
