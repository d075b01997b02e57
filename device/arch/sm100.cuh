// Data-centre Blackwell (sm_100a, sm_103a). See nvidia.cuh, port_example.h.
#pragma once

#include "device/arch/bulk_copy.cuh"
#include "device/arch/nvidia_long_attention.cuh"
#include "device/arch/nvidia_worker.cuh"

namespace eventide {

struct Sm100 : MovingRegistersPort {};

template <class P>
EVT_FN void RunWorker(const ProgramRecord& program, const StepHeader& header) {
  RunWorkerOf<Sm100, P>(program, header);
}

}  // namespace eventide
