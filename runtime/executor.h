// Runs a program's steps on some backend. Made by MakeCpuExecutor (runtime/cpu_executor.h),
// MakeSimExecutor (runtime/sim_executor.h) or the CUDA one; used in the same way:
//
//   ASSIGN_OR_RETURN(auto executor, MakeCpuExecutor(std::move(program), options));
//   RETURN_IF_ERROR(executor->Write(executor->TensorBuffer(x), 0, data, bytes));
//   RETURN_IF_ERROR(executor->RunStep(header));
//   RETURN_IF_ERROR(executor->Read(executor->TensorBuffer(y), 0, result, bytes));
//
// Not thread-safe: one thread drives an executor.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/phases.h"
#include "core/program.h"
#include "device/abi.h"

namespace eventide {

// Memory that a step can use. It belongs to the executor and lives as long.
struct Buffer {
  uint64_t address = 0;  // as ops and step headers name it
  int64_t bytes = 0;
};
// Whether the buffer has these bytes.
absl::Status CheckRange(const Buffer& buffer, int64_t offset, int64_t bytes);

// A tensor whose content is `data`, which must outlive the executor and is never written. Backends
// that share memory with the host use it in place; the others copy it once.
struct PlacedTensor {
  int tensor = -1;
  const void* data = nullptr;
};

struct ExecutorOptions {
  int workers = 0;                       // 0: as many as the machine runs at once
  uint64_t timeout_ns = 10'000'000'000;  // no task finished anywhere for this long: abort
  std::string policy = "auto";           // schedulers/scheduler.h
  std::vector<PlacedTensor> placed;
  // Tasks of one worker and role that a timeline holds (device/timeline.h); 0: none is recorded.
  int timeline_tasks = 0;
  PhaseLog* phases = nullptr;  // what making it takes: device, generate, nvrtc, ... (core/phases.h)
};

class Executor {
 public:
  virtual ~Executor() = default;

  virtual const Program& program() const = 0;
  virtual int workers() const = 0;

  // Where a tensor lives; all of it is zero at first (unless placed).
  virtual Buffer TensorBuffer(int tensor) const = 0;
  Buffer TensorBuffer(TensorId tensor) const { return TensorBuffer(tensor.index); }
  // Zeroed memory for rows, block tables, slot states, results.
  virtual absl::StatusOr<Buffer> AllocateBuffer(int64_t bytes) = 0;
  // Zeroed memory that steps write and the host reads (results): reading it after a step has been
  // waited for does not wait for the steps behind it.
  virtual absl::StatusOr<Buffer> AllocateResults(int64_t bytes) { return AllocateBuffer(bytes); }
  // Offsets and sizes are checked against the buffer. Reading waits for the steps in flight;
  // writing is ordered before steps submitted later.
  virtual absl::Status Write(const Buffer& to, int64_t offset, const void* data, int64_t bytes) = 0;
  virtual absl::Status Read(const Buffer& from, int64_t offset, void* data, int64_t bytes) = 0;
  virtual absl::Status Fill(const Buffer& to, int64_t offset, uint8_t value, int64_t bytes) = 0;

  // Enqueues a step. Of the header the host gives symbols, rows and their addresses; the executor
  // fills in abi, step, symbol_count, workers, bank and timeout_ns. An error here enqueues nothing.
  absl::Status Submit(const StepHeader& header) { return SubmitAll({&header, 1}); }
  // Steps that run one after the other and count as one: in flight, for Wait, for LastStepMs. Once one is
  // aborted, those behind it do not run.
  virtual absl::Status SubmitAll(std::span<const StepHeader> headers) = 0;
  // Waits for the oldest step that nobody has waited for: its error, if it was aborted. The next
  // step works all the same.
  virtual absl::Status Wait() = 0;
  // Milliseconds that the last step waited for took on its device; 0 where that was not asked for.
  virtual double LastStepMs() const = 0;
  // Milliseconds for which the device did nothing of this executor's before that step: from the end of the step
  // before it to its beginning, by the same clock. Negative where that is not known: of the first step, behind
  // an aborted one, and where times were not asked for.
  virtual double LastGapMs() const = 0;
  // Of the last step that ran, as device/timeline.h lays it out; empty without timeline_tasks.
  virtual Buffer TimelineBuffer() const = 0;
  // Steps that may be submitted and not waited for. On the CPU a step has run when Submit returns.
  virtual int MaxInFlight() const = 0;

  absl::Status RunStep(const StepHeader& header) {
    RETURN_IF_ERROR(Submit(header));
    return Wait();
  }
};

}  // namespace eventide
