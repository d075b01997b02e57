#include "runtime/worker_threads.h"

#include <sched.h>

#include <chrono>

namespace eventide {
namespace {

// Spins before parking: about as long as the host needs between two steps.
constexpr int kSpins = 4000;

void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

uint64_t NowNs() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

void RelaxWorker(bool crowded, uint32_t attempt) {
  const uint32_t spins = crowded ? 32 : 2000, yields = spins + (crowded ? 200 : 500);
  if (attempt < spins) {
    Pause();
  } else if (attempt < yields) {
    ::sched_yield();
  } else {
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

WorkerThreads::WorkerThreads(int count, std::function<void(int)> body)
    : count_(count),
      crowded_(count > static_cast<int>(std::thread::hardware_concurrency())),
      body_(std::move(body)) {
  for (int worker = 1; worker < count; ++worker)
    threads_.emplace_back([this, worker] { Main(worker); });
}

WorkerThreads::~WorkerThreads() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_.store(true, std::memory_order_relaxed);
    round_.fetch_add(1, std::memory_order_release);
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void WorkerThreads::RunAll() {
  running_.store(count_ - 1, std::memory_order_relaxed);
  if (count_ > 1) {
    const std::lock_guard<std::mutex> lock(mutex_);
    round_.fetch_add(1, std::memory_order_release);
  }
  wake_.notify_all();
  body_(0);
  for (int spin = 0; !crowded_ && spin < kSpins; ++spin) {
    if (running_.load(std::memory_order_acquire) == 0) return;
    Pause();
  }
  std::unique_lock<std::mutex> lock(mutex_);
  done_.wait(lock, [this] { return running_.load(std::memory_order_acquire) == 0; });
}

void WorkerThreads::Main(int worker) {
  for (uint64_t seen = 0;;) {
    for (int spin = 0; !crowded_ && spin < kSpins; ++spin) {
      if (round_.load(std::memory_order_acquire) != seen) break;
      Pause();
    }
    if (round_.load(std::memory_order_acquire) == seen) {
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait(lock, [&] { return round_.load(std::memory_order_acquire) != seen; });
    }
    ++seen;
    if (stop_.load(std::memory_order_relaxed)) return;
    body_(worker);
    if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      // With the mutex held, so that the caller is either before its test or asleep.
      const std::lock_guard<std::mutex> lock(mutex_);
      done_.notify_one();
    }
  }
}

}  // namespace eventide
