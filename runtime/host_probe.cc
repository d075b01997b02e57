#include "runtime/host_probe.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <vector>

#include "runtime/host_memory.h"
#include "runtime/worker_threads.h"

namespace eventide {
namespace {

// Eight sums, so that no addition waits for the one before.
uint64_t SumOf(const uint64_t* words, int64_t count) {
  uint64_t sum[8] = {};
  for (int64_t i = 0; i + 8 <= count; i += 8) {
    for (int k = 0; k < 8; ++k) sum[k] += words[i + k];
  }
  uint64_t total = 0;
  for (const uint64_t part : sum) total += part;
  return total;
}

}  // namespace

absl::StatusOr<double> HostReadGbps(int threads, int64_t bytes, int repeats) {
  if (threads < 1 || bytes < (1 << 20) || repeats < 1) {
    return absl::InvalidArgumentError("measuring memory needs a thread, a megabyte and a repeat");
  }
  ASSIGN_OR_RETURN(const HostBlock block, HostBlock::Allocate(bytes));
  char* data = reinterpret_cast<char*>(block.address());
  std::memset(data, 1, static_cast<size_t>(bytes));  // pages that were never written are all one
  const int64_t part = bytes / 8 / threads / 8 * 8;  // words of a thread
  std::atomic<uint64_t> sink{0};                     // keeps the sums from being dropped
  WorkerThreads workers(threads, [&](int worker) {
    const auto* words = reinterpret_cast<const uint64_t*>(data) + worker * part;
    sink.fetch_add(SumOf(words, part), std::memory_order_relaxed);
  });
  double best = 0;
  for (int i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    workers.RunAll();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    best = std::max(best, static_cast<double>(part * 8 * threads) / took.count() / 1e9);
  }
  return best;
}

}  // namespace eventide
