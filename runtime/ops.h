// The ops of ops/, built for every kind of host worker; the tables are made by the build
// (cmake/ops.cmake).
#pragma once

#include "device/arch/cpu.h"
#include "device/arch/sim.h"
#include "runtime/op_table.h"

namespace eventide {

// The best instruction set of this machine that ops are built for (CpuIsa).
int BestCpuIsa();

// All ops for the workers of one instruction set, at most BestCpuIsa().
const OpTable<CpuWorkerBase>& CpuOps(int isa);
const OpTable<SimWorker>& SimOps();

}  // namespace eventide
