// The words of a GPU by which steps are given up, and their copy on the host: see AbortRecord.
#pragma once

#include "core/program.h"
#include "runtime/cuda_device.h"
#include "runtime/cuda_memory.h"

namespace eventide {

class CudaAbort {
 public:
  ~CudaAbort();
  // `gpu` and `memory` must outlive this.
  absl::Status Allocate(const CudaDevice& gpu, CudaMemory* memory, int workers);
  uint64_t address() const { return words_.address; }

  // Of a step that has ended: its story (DeadlineExceeded) if it was given up. Copies on a stream of its
  // own, for the next step is running on the other one.
  absl::Status Story(const Program& program);
  absl::Status Clear();

 private:
  absl::Status Copy(int64_t bytes);

  const CudaDevice* gpu_ = nullptr;
  CudaMemory* memory_ = nullptr;
  Buffer words_;
  int workers_ = 0;
  uint8_t* host_ = nullptr;  // pinned, as long as words_
};

}  // namespace eventide
