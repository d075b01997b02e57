// Chains of matrix instructions over plain row-major operands, one kernel for each form: what the bits of
// one form are held against those of another with (tests/support/mma_probe.h). Sums are from zero in steps
// of 16 of K, as every segment of a linear is. Written to be read, not to be fast.
#pragma once

#include "device/arch/nvidia_linear.cuh"
#include "device/arch/nvidia_wgmma.cuh"

namespace eventide {

struct MmaProbe {
  u64 a, b;   // storage type, [rows][k], [rows][k]
  u64 out;    // float[a rows][b rows]
  u32 k;      // elements of a row
  u32 first;  // where the chain begins
  u32 steps;
  u32 b_rows;
};

// Two neighbours of a row as a register of a fragment.
template <class T>
EVT_FN u32 ProbePair(u64 rows, u32 k, u32 row, u32 column) {
  return reinterpret_cast<const u32*>(rows)[(u64{row} * k + column) / 2];
}

// The A fragment of 16 rows from `row`, and of 16 columns from `column`, of m16n8k16; a warp's part of
// wgmma's is the same.
template <class T>
EVT_FN uint4 ProbeFragment(const MmaProbe& p, u32 row, u32 column) {
  const u32 lane = threadIdx.x % 32, r = row + lane / 4, c = column + lane % 4 * 2;
  return make_uint4(ProbePair<T>(p.a, p.k, r, c), ProbePair<T>(p.a, p.k, r + 8, c),
                    ProbePair<T>(p.a, p.k, r, c + 8), ProbePair<T>(p.a, p.k, r + 8, c + 8));
}

// Where a lane's four sums of a 16 x 8 block belong.
EVT_FN void ProbeStore(const MmaProbe& p, u32 row, u32 column, const float* c) {
  const u32 lane = threadIdx.x % 32;
  float* out = reinterpret_cast<float*>(p.out);
#pragma unroll
  for (u32 i = 0; i < 4; ++i) {
    out[u64{row + lane / 4 + i / 2 * 8} * p.b_rows + column + lane % 4 * 2 + i % 2] = c[i];
  }
}

// mma.sync m16n8k16: block (x, y) is one warp and has 16 rows of a from 16 x, 8 rows of b from 8 y.
template <class T>
EVT_FN void ProbeMma(const MmaProbe& p) {
  const u32 lane = threadIdx.x % 32;
  float c[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 1
  for (u32 step = 0; step < p.steps; ++step) {
    const u32 column = p.first + step * 16, b_row = blockIdx.y * 8 + lane / 4;
    const u32 b0 = ProbePair<T>(p.b, p.k, b_row, column + lane % 4 * 2);
    const u32 b1 = ProbePair<T>(p.b, p.k, b_row, column + lane % 4 * 2 + 8);
    MmaOf<T>::Run(c, ProbeFragment<T>(p, blockIdx.x * 16, column), b0, b1);
  }
  ProbeStore(p, blockIdx.x * 16, blockIdx.y * 8, c);
}

// wgmma m64nNk16, A from registers, B from core matrices in shared memory: one warpgroup, 64 rows of a, N
// rows of b. Form::Run(c, a, matrix) is the instruction.
template <class T, u32 kN, class Form>
EVT_FN void ProbeWgmma(const MmaProbe& p) {
  __shared__ __align__(128) u16 staged[2 * kN * 8];  // [k / 8][row / 8][8 rows][8 k]
  float c[kN / 2];
#pragma unroll
  for (u32 i = 0; i < kN / 2; ++i) c[i] = 0.0f;
  const u32 warp = threadIdx.x / 32;
#pragma unroll 1
  for (u32 step = 0; step < p.steps; ++step) {
    const u32 column = p.first + step * 16;
    for (u32 i = threadIdx.x; i < kN * 8; i += 128) {
      const u32 row = i / 8, pair = i % 8 * 2;
      reinterpret_cast<u32*>(staged)[((pair / 8 * kN + row) * 8 + pair % 8) / 2] =
          ProbePair<T>(p.b, p.k, row, column + pair);
    }
    // wgmma reads through the async proxy what these threads have stored.
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    const uint4 a = ProbeFragment<T>(p, warp * 16, column);
    WgmmaFence();
    Form::Run(c, a, WgmmaMatrix(SharedAddress(staged), kN * 16, 128));
    WgmmaCommit();
    WgmmaAwait<0>();
    __syncthreads();
  }
#pragma unroll
  for (u32 group = 0; group < kN / 8; ++group) ProbeStore(p, warp * 16, group * 8, c + group * 4);
}

}  // namespace eventide

extern "C" __global__ void __launch_bounds__(32) probe_mma_bf16(eventide::MmaProbe p) {
  eventide::ProbeMma<eventide::BF16>(p);
}
extern "C" __global__ void __launch_bounds__(32) probe_mma_f16(eventide::MmaProbe p) {
  eventide::ProbeMma<eventide::F16>(p);
}
