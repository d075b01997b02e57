// Hopper and data-centre Blackwell (sm_90a, sm_100a): bulk copies, registers that move between
// warpgroups. See nvidia.cuh, port_example.h.
#pragma once

#include "device/arch/bulk_copy.cuh"
#include "device/arch/nvidia_attention.cuh"
#include "device/arch/nvidia_worker.cuh"

namespace eventide {

struct Sm90 : BulkCopyPort {
  static constexpr i32 kAttentionTokens = 64;
  static constexpr i32 kAttentionDims = 128;
  // A block is launched with 168 registers for each of 384 threads, and no more than those can be
  // shared out: 256 * 184 + 128 * 136 = 384 * 168. One step more and TakeRegisters waits for ever.
  static EVT_FN void TakeRegisters() { asm volatile("setmaxnreg.inc.sync.aligned.u32 184;"); }
  static EVT_FN void GiveRegisters() { asm volatile("setmaxnreg.dec.sync.aligned.u32 136;"); }
};

template <class P>
EVT_FN void RunWorker(const ProgramRecord& program, const StepHeader& header) {
  extern __shared__ __align__(128) u8 worker_memory[];
  RunWorkerOn<Sm90, P>(program, &header, worker_memory);
}

}  // namespace eventide
