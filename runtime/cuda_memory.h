// Device memory of one executor: what is allocated, and copies from and to ordinary memory through
// pinned chunks, all on one stream.
#pragma once

#include <array>
#include <vector>

#include "jit/driver.h"
#include "runtime/executor.h"
#include "runtime/memory.h"

namespace eventide {

class CudaMemory {
 public:
  CudaMemory() = default;
  CudaMemory(const CudaMemory&) = delete;
  ~CudaMemory();

  // The context is current.
  absl::Status Open(const CudaDriver* driver, CuStream stream);

  // Zeroed device memory; `what` is for messages.
  absl::StatusOr<Buffer> Allocate(int64_t bytes, const std::string& what);
  // One block per arena.
  absl::StatusOr<std::array<uint64_t, kArenas>> AllocateArenas(
      const std::array<int64_t, kArenas>& bytes);
  // Pinned host memory that the device writes; Host() is where the host reads it.
  absl::StatusOr<Buffer> AllocateMapped(int64_t bytes);
  // The host's address of a mapped device address, or null.
  void* Host(uint64_t address) const;

  // Enqueues a copy; `data` may be reused at once.
  absl::Status Upload(uint64_t to, const void* data, int64_t bytes);
  // Waits for everything on the stream, then copies.
  absl::Status Download(uint64_t from, void* data, int64_t bytes);
  absl::Status Fill(uint64_t to, uint8_t value, int64_t bytes);

 private:
  static constexpr int kChunks = 4;
  static constexpr int64_t kChunkBytes = 8 << 20;
  struct Mapped {
    uint64_t device;
    char* host;
    int64_t bytes;
  };
  absl::Status NextChunk();

  const CudaDriver* driver_ = nullptr;
  CuStream stream_ = nullptr;
  std::vector<CuPointer> blocks_;
  std::vector<Mapped> mapped_;
  // Small copies share a chunk; a chunk is used again when the copies out of it have run.
  std::array<char*, kChunks> chunk_ = {};
  std::array<CuEvent, kChunks> left_ = {};
  std::array<bool, kChunks> pending_ = {};
  int current_ = 0;
  int64_t used_ = 0;
};

}  // namespace eventide
