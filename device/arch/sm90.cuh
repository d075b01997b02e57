// Hopper (sm_90a): products of many tokens by wgmma. See nvidia.cuh, port_example.h.
#pragma once

#include "device/arch/bulk_copy.cuh"
#include "device/arch/nvidia_long_attention.cuh"
#include "device/arch/nvidia_worker.cuh"

namespace eventide {

struct Sm90 : MovingRegistersPort {
  static constexpr bool kWgmma = true;
};

template <class P>
EVT_FN void RunWorker(const ProgramRecord& program, const StepHeader& header) {
  RunWorkerOf<Sm90, P>(program, header);
}

}  // namespace eventide
