#include "runtime/cuda_abort.h"

#include <cstring>

#include "runtime/abort.h"

namespace eventide {

CudaAbort::~CudaAbort() {
  if (host_ != nullptr) gpu_->driver->MemFreeHost(host_);
}

absl::Status CudaAbort::Allocate(const CudaDevice& gpu, CudaMemory* memory, int workers) {
  gpu_ = &gpu;
  memory_ = memory;
  workers_ = workers;
  const uint64_t bytes = AbortBytes(static_cast<uint64_t>(workers));
  ASSIGN_OR_RETURN(words_, memory->Allocate(static_cast<int64_t>(bytes), "the abort records"));
  void* host = nullptr;
  RETURN_IF_ERROR(gpu.driver->Check(gpu.driver->MemHostAlloc(&host, bytes, 0),
                                    "allocating pinned memory"));
  host_ = static_cast<uint8_t*>(host);
  return absl::OkStatus();
}

absl::Status CudaAbort::Copy(int64_t bytes) {
  const CudaDriver& driver = *gpu_->driver;
  RETURN_IF_ERROR(driver.Check(
      driver.MemcpyDtoHAsync(host_, words_.address, static_cast<size_t>(bytes), gpu_->second_stream),
      "reading the abort records"));
  return driver.Check(driver.StreamSynchronize(gpu_->second_stream), "reading the abort records");
}

absl::Status CudaAbort::Story(const Program& program) {
  uint32_t word = 0;
  RETURN_IF_ERROR(Copy(sizeof(word)));
  std::memcpy(&word, host_, sizeof(word));
  if (word == 0) return absl::OkStatus();
  RETURN_IF_ERROR(Copy(words_.bytes));
  const auto* records = reinterpret_cast<const AbortRecord*>(host_ + kEventStrideBytes);
  return DescribeAbort(program, {records, static_cast<size_t>(workers_) * kRoles});
}

absl::Status CudaAbort::Clear() { return memory_->Fill(words_.address, 0, words_.bytes); }

}  // namespace eventide
