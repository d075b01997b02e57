// Workstation Blackwell (sm_120a): bulk copies; the assembler keeps registers where they are. See
// nvidia.cuh, port_example.h.
#pragma once

#include "device/arch/bulk_copy.cuh"
#include "device/arch/nvidia_long_attention.cuh"
#include "device/arch/nvidia_worker.cuh"

namespace eventide {

struct Sm120 : BulkCopyPort {
  static constexpr bool kTensorBoxes = false;  // its service warps have no registers to spare for them
  static constexpr i32 kAttentionTokens = 32;
  static constexpr i32 kAttentionDims = 64;  // see sm80.cuh
  static constexpr i32 kMergedAside = 4;
  static constexpr u32 kLongFloor = 2;
  static EVT_FN void TakeRegisters() {}
  static EVT_FN void GiveRegisters() {}
};

template <class P>
EVT_FN void RunWorker(const ProgramRecord& program, const StepHeader& header) {
  RunWorkerOf<Sm120, P>(program, header);
}

}  // namespace eventide
