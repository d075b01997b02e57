// Products by warpgroups (wgmma, sm_90a): a pair of packed row tiles is the instruction's 64 rows, whose fragments go from
// shared memory to registers as for mma.sync; core matrices of activations are read where they lie. K comes segment after
// segment, so that a thread has the sums of one segment and those so far: the bits are those of nvidia_linear.cuh, whose
// warps have a segment each. With its rows in registers an instruction of fewer than 64 tokens takes as long as one of 64
// (measured: some 35 cycles of a multiprocessor), so a warpgroup has all tokens.
#pragma once

#include "device/arch/nvidia_compute.cuh"

namespace eventide {

// A matrix of shared memory as wgmma is told of it, without swizzle: core matrices of 8 rows x 16 bytes;
// how far apart two are that follow each other along k, and along rows.
EVT_FN u64 WgmmaMatrix(u32 address, u32 k_stride, u32 row_stride) {
  return static_cast<u64>((address & 0x3ffff) >> 4) | static_cast<u64>(k_stride >> 4) << 16 |
         static_cast<u64>(row_stride >> 4) << 32;
}
EVT_FN void WgmmaFence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
EVT_FN void WgmmaCommit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until no more than kGroups that were committed are still under way.
template <i32 kGroups>
EVT_FN void WgmmaAwait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
}

// c = a * b, or c + a * b where it `adds`: 64 rows, of which this warp's fragment has 16, by 64 columns.
template <class T>
struct WgmmaOf;
template <>
struct WgmmaOf<BF16> {
  static EVT_FN void Run(float (&c)[32], const uint4& a, u64 b, u32 adds) {
    asm volatile(
        "{ .reg .pred p; setp.ne.u32 p, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
        "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, p, 1, 1, 0; }"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]),
          "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]),
          "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]),
          "+f"(c[23]), "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]),
          "+f"(c[30]), "+f"(c[31])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"(adds)
        : "memory");
  }
};
template <>
struct WgmmaOf<F16> {
  static EVT_FN void Run(float (&c)[32], const uint4& a, u64 b, u32 adds) {
    asm volatile(
        "{ .reg .pred p; setp.ne.u32 p, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
        "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, p, 1, 1, 0; }"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]),
          "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]),
          "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]),
          "+f"(c[23]), "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]),
          "+f"(c[30]), "+f"(c[31])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"(adds)
        : "memory");
  }
};

// Up to four row tiles by up to 64 tokens: a warpgroup has two of the tiles, or the last one, or none.
template <class T>
struct WgmmaProducts {
  static constexpr i32 kSums = 32;  // 64 x 64 by 128 threads

  // Takes and drops the pages of a pass over all of K. sum: of each 16 x 8 block what a lane has of mma.sync's.
  //
  // A page's instructions are issued in two halves, each with fragments in registers of its own, which are loaded while
  // the other half is multiplied: so the next page is taken, its barriers are waited for, before this one is through, and
  // two pages of activations are held at a time. Steps behind a segment's last are zeros on both sides (their boxes end
  // there), which change no sum.
  template <class W, i32 kUnits>
  static EVT_FN void Run(W& w, i32 steps, i32 tiles, float (&sum)[kUnits][4]) {
    static_assert(kUnits * 4 >= kSums);
    const i32 pairs = tiles > 2 ? 2 : 1, pages = CeilDiv(steps, kPassSteps);
    i32 left = kSegments * pages;
    if (static_cast<i32>(w.thread / 128) >= pairs) {
#pragma unroll 1
      for (; left > 0; --left) {
        w.TakeShared(kLaneInput);
        w.Advance(kLaneStream, pairs);
        w.Drop(kLaneInput);
      }
      return;
    }
    float c[kSums];
#pragma unroll
    for (i32 i = 0; i < kSums; ++i) c[i] = 0.0f;  // as GpuLinearTile::Clear
    uint4 early[kHalf], late[kHalf];
    Place page = Take(w);
    Load(page.rows, early);
    i32 of_segment = pages;
    bool first = true;
#pragma unroll 1
    for (;;) {
      Issue(c, early, page.columns, of_segment != pages);
      Load(page.rows + kHalf * 2 * kFragmentBytes, late);
      w.Release(kLaneStream, static_cast<i32>(w.thread / 128), 4, w.thread / 32 % 4 == 0);
      w.Advance(kLaneStream, pairs);
      Issue(c, late, page.columns + kHalf * (kStepBytes / 16), true);
      const bool more = --left > 0;
      if (more) {
        page = Take(w);
        WgmmaAwait<1>();
        Load(page.rows, early);
      }
      WgmmaAwait<0>();
      w.Drop(kLaneInput);
      if (--of_segment > 0) continue;
#pragma unroll
      for (i32 i = 0; i < kSums; ++i) {
        float& all = sum[i / 4][i % 4];
        all = first ? c[i] : Add(all, c[i]);
      }
      if (!more) return;
      first = false;
      of_segment = pages;
    }
  }

 private:
  static constexpr u32 kFragmentBytes = kFragment * sizeof(T);
  static constexpr u32 kStepBytes = 256;  // of 8 tokens
  static constexpr i32 kHalf = kPassSteps / 2;

  // Where a lane's fragments and the columns of a page lie.
  struct Place {
    u32 rows;
    u64 columns;
  };
  // This warpgroup's next page.
  template <class W>
  static EVT_FN Place Take(W& w) {
    const u32 warp = w.thread / 32;
    const u32 b = w.TakeShared(kLaneInput).x;
    // What its slot held before was this warpgroup's, too, or is from before the pass, which all warps begin
    // together: so it has arrived, and `full` cannot be taken for a phase earlier.
    const uint2 page = w.PeekShared(kLaneStream, warp / 4 % 2);  // known to be near
    // Of a tile without a partner both pairs of warps have the rows. The columns' address is said to be a warp's, not a
    // thread's: descriptors are then worked out in uniform registers.
    return {page.x + warp / 2 % 2 * page.y + warp % 2 * kFragmentBytes + w.Lane() * 16,
            WgmmaMatrix(__shfl_sync(0xffffffffu, b, 0), 128, kPassSteps * kStepBytes)};
  }
  static EVT_FN void Load(u32 from, uint4 (&rows)[kHalf]) {
#pragma unroll
    for (i32 s = 0; s < kHalf; ++s) rows[s] = LoadShared16(from + static_cast<u32>(s) * 2 * kFragmentBytes);
  }
  static EVT_FN void Issue(float (&c)[kSums], const uint4 (&rows)[kHalf], u64 columns, bool adds) {
    WgmmaFence();
#pragma unroll
    for (i32 s = 0; s < kHalf; ++s) {
      WgmmaOf<T>::Run(c, rows[s], columns + static_cast<u32>(s) * (kStepBytes / 16), s > 0 || adds);
    }
    WgmmaCommit();
  }
};

}  // namespace eventide
