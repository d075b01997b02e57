// Ampere and Ada (sm_80 to sm_89): copies are cp.async by all lanes of a producer warp, which
// complete on mbarriers as arrivals; registers do not move. See nvidia.cuh.
#pragma once

#include "device/arch/nvidia_long_attention.cuh"
#include "device/arch/nvidia_worker.cuh"

namespace eventide {

struct Sm80 {
  static constexpr bool kOneThreadCopies = false;
  static constexpr bool kTensorBoxes = false;
  static constexpr bool kWgmma = false;
  static constexpr u32 kFullArrivals = 32;  // every lane of the producer
  // Half of what ports have that move registers: all threads have 168, and sums of 128 dims spill.
  static constexpr i32 kAttentionDims = 64;
  static constexpr i32 kMergedAside = 4;  // blocks of 8 of these dims whose merged sums have no registers
  static constexpr u32 kLongFloor = 2;    // pages of the stream lane that a task of many rows has at once
  static constexpr i32 kAttentionTokens = 32;

  static EVT_FN bool ElectOne() { return LaneId() == 0; }
  static EVT_FN bool BarrierTry(u32 barrier, u32 parity) {
    return BarrierTest(barrier, parity);
  }
  // As BulkCopyPort's. One loop: a try in front of it takes registers that are not there.
  template <u32 kEnded, u32 kCause>
  static EVT_FN u32 BarrierWait(u32 base, u32 barrier, u32 parity) {
    u32 ended;
    asm volatile(
        "{ .reg .pred p, late;\n"
        "mov.u32 %0, 0;\n"
        "setp.ne.u32 late, %2, %2;\n"
        "W%=: mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "@p bra D%=;\n"
        "st.volatile.shared::cta.u32 [%3+%4], %6;\n"
        "ld.volatile.shared::cta.u32 %0, [%3+%5];\n"
        "setp.eq.u32 late, %2, %2;\n"
        "setp.eq.u32 p, %0, 0;\n"
        "@p bra W%=;\n"
        "D%=: @late st.volatile.shared::cta.u32 [%3+%4], %7; }"
        : "=&r"(ended)
        : "r"(barrier), "r"(parity), "r"(base), "n"(kCause), "n"(kEnded), "n"(u32{kAbortStuckPage}),
          "n"(u32{kAbortStuckTask})
        : "memory");
    return ended;
  }
  static EVT_FN void ArriveMany(u32 barrier, u32 count) {
    // An arrival of several at once may not complete a phase here.
    EVT_ROLLED
    for (u32 i = 0; i < count; ++i) BarrierArrive(barrier);
  }
  static EVT_FN void FenceAfterBarrierInit() {}
  static EVT_FN void FenceBeforeCopyFromGlobal() {}  // cp.async is no proxy of its own
  static EVT_FN void FenceAfterStores() {}

  template <bool>
  static EVT_FN void ArriveWithoutData(u32 barrier) { BarrierArrive(barrier); }
  template <bool, class Source>
  static EVT_FN void CopyPieces(u32 page, const CopyShape& shape, const Source& source, u32 full) {
    for (i32 run = 0; run < shape.runs; ++run) {
      for (i32 i = 0; i < shape.pieces; ++i) {
        const u8* from = reinterpret_cast<const u8*>(source(i, run));
        const u32 to = page + static_cast<u32>(run) * shape.run_bytes + static_cast<u32>(i) * shape.bytes;
        const u32 size = i == shape.pieces - 1 ? shape.last_bytes : shape.bytes;
        for (u32 at = LaneId() * 16; at < size; at += 512) {
          asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + at), "l"(from + at)
                       : "memory");
        }
      }
    }
    ArriveWhenCopied(full);
  }
  // This lane's arrival happens when all its copies so far have landed.
  static EVT_FN void ArriveWhenCopied(u32 full) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(full)
                 : "memory");
  }
  static EVT_FN void TakeRegisters() {}
  static EVT_FN void GiveRegisters() {}
};

template <class P>
EVT_FN void RunWorker(const ProgramRecord& program, const StepHeader& header) {
  RunWorkerOf<Sm80, P>(program, header);
}

}  // namespace eventide
