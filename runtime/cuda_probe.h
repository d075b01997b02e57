// Measures a GPU itself: the plain read that every step is held against, and what the words of
// synchronisation cost (device/arch/nvidia_probes.cuh, compiled when asked for).
#pragma once

#include <memory>

#include "runtime/cuda_device.h"
#include "runtime/cuda_memory.h"

namespace eventide {

struct SyncTimes {
  double hop_us = 0, hop_us_min = 0, hop_us_max = 0;  // an event one way, over all other SMs
  double ticket_us = 0;                               // one worker popping alone
  double ticket_contended_us = 0;                     // all workers popping one counter
  double page_ns = 0;                                 // a grant and its return, one lane alone
  double page_contended_ns = 0;                       // both lanes at once
  double barrier_us = 0;                              // all workers on one counter
};

class CudaProbe {
 public:
  static absl::StatusOr<std::unique_ptr<CudaProbe>> Open(int ordinal = 0);
  ~CudaProbe();

  const std::string& gpu() const { return gpu_.name; }
  int multiprocessors() const { return gpu_.multiprocessors; }

  absl::StatusOr<int64_t> FreeBytes();
  // The best of `repeats` reads of the same bytes, in GB/s (10^9 bytes). The buffer is allocated by
  // the first call and kept: at least 2 GiB where they are free, and never what fits the L2 cache.
  absl::StatusOr<double> ReadGbps(int repeats);
  absl::StatusOr<SyncTimes> Sync();

 private:
  CudaProbe() = default;
  absl::Status Load();
  absl::StatusOr<CuFunction> Find(const char* kernel);
  absl::Status AllocateRead();
  absl::Status Launch(CuFunction function, int blocks, int threads, void** parameters);
  // Runs a kernel of (words, ns, rounds) and returns ns, one per block.
  absl::StatusOr<std::vector<uint64_t>> Run(const char* kernel, int blocks, int threads,
                                            uint32_t rounds);

  CudaDevice gpu_;  // first: closed last
  CudaMemory memory_;
  CuModule module_ = nullptr;
  CuEvent started_ = nullptr, ended_ = nullptr;
  Buffer words_, ns_, read_;
};

}  // namespace eventide
