// The CPU backend: one thread per worker, op bodies compiled into the binary, edges evaluated.
#pragma once

#include <memory>

#include "device/arch/cpu.h"
#include "runtime/executor.h"
#include "runtime/op_table.h"

namespace eventide {

using CpuOpTable = OpTable<CpuWorkerBase>;

struct CpuExecutorOptions : ExecutorOptions {
  int isa = -1;  // CpuIsa; -1: the best that this machine has
  // Null: the ops in ops/. A table must have been made for the workers of `isa`.
  const CpuOpTable* ops = nullptr;
};

absl::StatusOr<std::unique_ptr<Executor>> MakeCpuExecutor(Program program,
                                                          const CpuExecutorOptions& options);

}  // namespace eventide
