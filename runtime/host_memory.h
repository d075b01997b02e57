// What the backends that run in host memory (CPU, simulator) share: tensors, buffers, the counter
// banks and the other words a ProgramRecord points to, and the checks of a step.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/executor.h"
#include "runtime/memory.h"
#include "schedulers/scheduler.h"

namespace eventide {

// This machine's memory, and what of it is free; 4 GiB where the system does not say.
int64_t MachineMemoryBytes();
int64_t FreeMemoryBytes();

// Zeroed memory from the operating system, committed when touched.
class HostBlock {
 public:
  static absl::StatusOr<HostBlock> Allocate(int64_t bytes);
  HostBlock() = default;
  HostBlock(HostBlock&& other) noexcept { *this = std::move(other); }
  HostBlock& operator=(HostBlock&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~HostBlock();
  uint64_t address() const { return reinterpret_cast<uint64_t>(data_); }
  int64_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

class HostExecutor : public Executor {
 public:
  const Program& program() const override { return *program_; }
  int workers() const override { return workers_; }
  Buffer TensorBuffer(int tensor) const override;
  absl::StatusOr<Buffer> AllocateBuffer(int64_t bytes) override;
  absl::Status Write(const Buffer& to, int64_t offset, const void* data, int64_t bytes) override;
  absl::Status Read(const Buffer& from, int64_t offset, void* data, int64_t bytes) override;
  absl::Status Fill(const Buffer& to, int64_t offset, uint8_t value, int64_t bytes) override;
  absl::Status SubmitAll(std::span<const StepHeader> headers) override;
  absl::Status Wait() override;
  int MaxInFlight() const override { return 2; }
  double LastStepMs() const override { return last_.ms; }
  double LastGapMs() const override { return last_.gap_ms; }
  Buffer TimelineBuffer() const override { return timeline_; }

 protected:
  absl::Status Setup(Program program, const ExecutorOptions& options, const MachineShape& machine);
  // Runs the step to its end on all workers; `view` is complete. The abort record says how it ended
  // unless an error is returned.
  virtual absl::Status RunWorkers(const StepHeader& header, const StepView& view) = 0;
  virtual void EvaluateDims(StepView& view) const = 0;

  // One of `workers` equal parts of the bank that the step does not use, for worker `worker` to
  // clear.
  void ClearSlice(uint32_t used_bank, int worker) const;

  std::unique_ptr<Program> program_;
  std::vector<uint64_t> addresses_;  // by tensor
  std::vector<Node> nodes_;
  ProgramRecord record_ = {};

 private:
  absl::Status Allocate(const ExecutorOptions& options);
  absl::Status SumRows(StepHeader& header) const;
  absl::Status Prepare(StepHeader* header, StepView* view);
  absl::Status Outcome();

  int workers_ = 0;
  uint64_t timeout_ns_ = 0;
  uint64_t step_ = 0;
  MemoryPlan plan_;
  std::vector<HostBlock> blocks_;
  struct Ran {
    absl::Status status;
    double ms = 0, gap_ms = -1;
  };
  std::vector<Ran> outcomes_;  // of steps not waited for, oldest first
  Ran last_;                   // the one waited for last
  std::optional<std::chrono::steady_clock::time_point> ended_;  // the last step, if it was not aborted
  Buffer timeline_;
};

}  // namespace eventide
