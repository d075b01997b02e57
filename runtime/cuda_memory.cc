#include "runtime/cuda_memory.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_format.h"

namespace eventide {

CudaMemory::~CudaMemory() {
  if (driver_ == nullptr) return;
  for (const CuPointer block : blocks_) driver_->MemFree(block);
  for (const Mapped& mapped : mapped_) driver_->MemFreeHost(mapped.host);
  for (char* chunk : chunk_) {
    if (chunk != nullptr) driver_->MemFreeHost(chunk);
  }
  for (const CuEvent event : left_) {
    if (event != nullptr) driver_->EventDestroy(event);
  }
}

absl::Status CudaMemory::Open(const CudaDriver* driver, CuStream stream) {
  driver_ = driver;
  stream_ = stream;
  for (int i = 0; i < kChunks; ++i) {
    void* chunk = nullptr;
    RETURN_IF_ERROR(driver_->Check(driver_->MemHostAlloc(&chunk, kChunkBytes, 0),
                                   "allocating pinned memory for copies"));
    chunk_[i] = static_cast<char*>(chunk);
    RETURN_IF_ERROR(
        driver_->Check(driver_->EventCreate(&left_[i], kCuEventNoTiming), "creating an event"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Buffer> CudaMemory::Allocate(int64_t bytes, const std::string& what) {
  if (bytes < 0) return absl::InvalidArgumentError("a buffer of negative size");
  if (bytes == 0) return Buffer{};
  CuPointer address = 0;
  const int result = driver_->MemAlloc(&address, static_cast<size_t>(bytes));
  if (result != 0) {
    size_t free = 0, total = 0;
    driver_->MemGetInfo(&free, &total);
    return driver_->Check(
        result, absl::StrFormat("allocating %d bytes on the GPU for %s (%d of %d are free)", bytes,
                                what, free, total));
  }
  blocks_.push_back(address);
  RETURN_IF_ERROR(Fill(address, 0, bytes));
  return Buffer{address, bytes};
}

absl::StatusOr<std::array<uint64_t, kArenas>> CudaMemory::AllocateArenas(
    const std::array<int64_t, kArenas>& bytes) {
  static constexpr const char* kNames[kArenas] = {"weights", "state (mostly the KV cache)", "inputs",
                                                  "scratch", "outputs"};
  std::array<uint64_t, kArenas> base = {};
  for (int arena = 0; arena < kArenas; ++arena) {
    ASSIGN_OR_RETURN(const Buffer buffer, Allocate(bytes[arena], kNames[arena]));
    base[arena] = buffer.address;
  }
  return base;
}

absl::StatusOr<Buffer> CudaMemory::AllocateMapped(int64_t bytes) {
  if (bytes < 0) return absl::InvalidArgumentError("a buffer of negative size");
  if (bytes == 0) return Buffer{};
  void* host = nullptr;
  CuPointer device = 0;
  RETURN_IF_ERROR(
      driver_->Check(driver_->MemHostAlloc(&host, static_cast<size_t>(bytes), kCuHostMapped),
                     absl::StrFormat("allocating %d bytes of pinned memory", bytes)));
  std::memset(host, 0, static_cast<size_t>(bytes));
  mapped_.push_back({0, static_cast<char*>(host), bytes});
  RETURN_IF_ERROR(driver_->Check(driver_->MemHostGetDevicePointer(&device, host, 0),
                                 "mapping pinned memory into the GPU"));
  mapped_.back().device = device;
  return Buffer{device, bytes};
}

void* CudaMemory::Host(uint64_t address) const {
  for (const Mapped& mapped : mapped_) {
    const uint64_t offset = address - mapped.device;
    if (address >= mapped.device && offset < static_cast<uint64_t>(mapped.bytes)) {
      return mapped.host + offset;
    }
  }
  return nullptr;
}

absl::Status CudaMemory::NextChunk() {
  RETURN_IF_ERROR(
      driver_->Check(driver_->EventRecord(left_[current_], stream_), "recording an event"));
  pending_[current_] = true;
  current_ = (current_ + 1) % kChunks;
  used_ = 0;
  if (pending_[current_]) {
    RETURN_IF_ERROR(driver_->Check(driver_->EventSynchronize(left_[current_]),
                                   "waiting for copies to the GPU"));
    pending_[current_] = false;
  }
  return absl::OkStatus();
}

absl::Status CudaMemory::Upload(uint64_t to, const void* data, int64_t bytes) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    if (used_ == kChunkBytes) RETURN_IF_ERROR(NextChunk());
    const int64_t part = std::min(bytes, kChunkBytes - used_);
    char* staging = chunk_[current_] + used_;
    std::memcpy(staging, from, static_cast<size_t>(part));
    RETURN_IF_ERROR(
        driver_->Check(driver_->MemcpyHtoDAsync(to, staging, static_cast<size_t>(part), stream_),
                       absl::StrFormat("copying %d bytes to the GPU", part)));
    // Copies start on lines of their own, so that none is slow because of its neighbour.
    used_ = std::min(kChunkBytes, (used_ + part + 255) / 256 * 256);
    to += static_cast<uint64_t>(part);
    from += part;
    bytes -= part;
  }
  return absl::OkStatus();
}

absl::Status CudaMemory::Download(uint64_t from, void* data, int64_t bytes) {
  char* to = static_cast<char*>(data);
  while (bytes > 0) {
    if (used_ > 0) RETURN_IF_ERROR(NextChunk());
    const int64_t part = std::min(bytes, kChunkBytes);
    RETURN_IF_ERROR(driver_->Check(
        driver_->MemcpyDtoHAsync(chunk_[current_], from, static_cast<size_t>(part), stream_),
        absl::StrFormat("copying %d bytes from the GPU", part)));
    RETURN_IF_ERROR(driver_->Check(driver_->StreamSynchronize(stream_), "waiting for the GPU"));
    std::memcpy(to, chunk_[current_], static_cast<size_t>(part));
    from += static_cast<uint64_t>(part);
    to += part;
    bytes -= part;
  }
  return absl::OkStatus();
}

absl::Status CudaMemory::Fill(uint64_t to, uint8_t value, int64_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  return driver_->Check(driver_->MemsetD8Async(to, value, static_cast<size_t>(bytes), stream_),
                        absl::StrFormat("filling %d bytes on the GPU", bytes));
}

}  // namespace eventide
