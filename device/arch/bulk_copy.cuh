// What Hopper and everything newer has in common: bulk copies that complete on mbarriers, and the
// fences of their proxy. See nvidia.cuh.
#pragma once

#include "device/arch/nvidia.cuh"

namespace eventide {

struct BulkCopyPort {
  static constexpr bool kOneThreadCopies = true;
  static constexpr bool kTensorBoxes = true;
  static constexpr bool kWgmma = false;
  static constexpr u32 kFullArrivals = 1;  // one lane's expect_tx, or one plain arrival

  // One thread of a converged warp. The assembler knows it for one: a bulk copy, whose operands are a warp's
  // and not a thread's, is then one instruction and not a loop over whoever might be there.
  static EVT_FN bool ElectOne() {
    u32 elected;
    asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }" : "=r"(elected));
    return elected != 0;
  }
  static EVT_FN bool BarrierTry(u32 barrier, u32 parity) {
    u32 done;
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, "
        "p; }"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
    return done != 0;
  }
  // Until the barrier's phase of this parity has completed, or the step has ended: then not 0. The first try is outside of
  // the loop, at whose head a warp is made to yield (some 45 cycles). While it takes longer, the word at kCause says why
  // (kAbortStuckPage), then that the task itself goes on (kAbortStuckTask).
  template <u32 kEnded, u32 kCause>
  static EVT_FN u32 BarrierWait(u32 base, u32 barrier, u32 parity) {
    u32 ended;
    asm volatile(
        "{ .reg .pred p;\n"
        "mov.u32 %0, 0;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "@p bra D%=;\n"
        "W%=: st.volatile.shared::cta.u32 [%3+%4], %6;\n"
        "ld.volatile.shared::cta.u32 %0, [%3+%5];\n"
        "setp.ne.u32 p, %0, 0;\n"
        "@p bra D%=;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "@!p bra W%=;\n"
        "st.volatile.shared::cta.u32 [%3+%4], %7;\n"
        "D%=: }"
        : "=&r"(ended)
        : "r"(barrier), "r"(parity), "r"(base), "n"(kCause), "n"(kEnded), "n"(u32{kAbortStuckPage}),
          "n"(u32{kAbortStuckTask})
        : "memory");
    return ended;
  }
  static EVT_FN void ArriveMany(u32 barrier, u32 count) {
    asm volatile("{ .reg .b64 t; mbarrier.arrive.shared::cta.b64 t, [%0], %1; }" ::"r"(barrier),
                 "r"(count)
                 : "memory");
  }
  static EVT_FN void FenceAfterBarrierInit() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  // Both sides fence: no axiom of the memory model covers the async proxy (docs/memory_model.md).
  static EVT_FN void FenceBeforeCopyFromGlobal() {
    asm volatile("fence.proxy.async.global;" ::: "memory");
  }
  static EVT_FN void FenceAfterStores() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

  template <bool kAlone>
  static EVT_FN void ArriveWithoutData(u32 barrier) {
    if (kAlone || LaneId() == 0) BarrierArrive(barrier);
  }
  // A warp whose lanes have issued cp.async: each lane's arrival is counted in first and happens when its
  // copies have landed; the one that the barrier expects comes last.
  static EVT_FN void ArriveWhenCopied(u32 full) {
    asm volatile("cp.async.mbarrier.arrive.shared::cta.b64 [%0];" ::"r"(full) : "memory");
    __syncwarp();
    if (LaneId() == 0) BarrierArrive(full);
  }
  static EVT_FN void Expect(u32 full, u32 bytes) {
    // Compute read this page with ordinary loads before it dropped it; the copy engine writes it next.
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile("{ .reg .b64 t; mbarrier.arrive.expect_tx.shared::cta.b64 t, [%0], %1; }" ::"r"(full),
                 "r"(bytes)
                 : "memory");
  }
  static EVT_FN void CopyBox(u32 page, u64 map, const BoxAt& box, u32 bytes, u32 full) {
    Expect(full, bytes);
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
        "[%1, {%2, %3, %4, %5, %6}], [%7];" ::"r"(page),
        "l"(map), "r"(box.at[0]), "r"(box.at[1]), "r"(box.at[2]), "r"(box.at[3]), "r"(box.at[4]), "r"(full)
        : "memory");
  }
  // One thread, or all lanes of a warp. The arrival precedes the copies' completions, which its
  // transaction count covers.
  template <bool kAlone, class Source>
  static EVT_FN void CopyPieces(u32 page, const CopyShape& shape, const Source& source, u32 full) {
    if (kAlone || LaneId() == 0) Expect(full, shape.Size());
    if constexpr (!kAlone) __syncwarp();
    constexpr i32 kAtOnce = kAlone ? 4 : 1, kStride = kAlone ? kAtOnce : 32;
#pragma unroll 1
    for (i32 first = kAlone ? 0 : static_cast<i32>(LaneId()); first < shape.pieces; first += kStride) {
#pragma unroll
      for (i32 i = first; i < first + kAtOnce; ++i) {
        if (i >= shape.pieces) break;
        const u32 size = i == shape.pieces - 1 ? shape.last_bytes : shape.bytes;
        for (i32 run = 0; run < shape.runs; ++run) {
          asm volatile(
              "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
              "[%3];" ::"r"(page + static_cast<u32>(run) * shape.run_bytes +
                            static_cast<u32>(i) * shape.bytes),
              "l"(source(i, run)), "r"(size), "r"(full)
              : "memory");
        }
      }
    }
  }
};

// Of data centres: registers that move between warpgroups.
struct MovingRegistersPort : BulkCopyPort {
  static constexpr i32 kAttentionTokens = 64;
  static constexpr i32 kAttentionDims = 128;
  static constexpr i32 kMergedAside = 8;
  static constexpr u32 kLongFloor = 3;
  // A block is launched with 168 registers for each of 384 threads, and no more than those can be
  // shared out: 256 * 200 + 128 * 104 = 384 * 168. One step more and TakeRegisters waits for ever.
  static EVT_FN void TakeRegisters() { asm volatile("setmaxnreg.inc.sync.aligned.u32 200;"); }
  static EVT_FN void GiveRegisters() { asm volatile("setmaxnreg.dec.sync.aligned.u32 104;"); }
};

}  // namespace eventide
