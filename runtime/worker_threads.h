// A fixed set of threads that run one function together, again and again: parked in between, woken
// in microseconds. The caller is worker 0.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace eventide {

class WorkerThreads {
 public:
  // `body(worker)` for every worker in [0, count) on each RunAll.
  WorkerThreads(int count, std::function<void(int)> body);
  ~WorkerThreads();
  WorkerThreads(const WorkerThreads&) = delete;
  WorkerThreads& operator=(const WorkerThreads&) = delete;

  // Returns when all have returned. What the caller wrote before is visible to the bodies, and what
  // they wrote to the caller after.
  void RunAll();
  // More workers than the machine runs at once: waiting must give way soon.
  bool crowded() const { return crowded_; }

 private:
  void Main(int worker);

  const int count_;
  const bool crowded_;
  const std::function<void(int)> body_;
  // Number of RunAll calls. Stored with the mutex held (so that nobody falls asleep past it) and
  // with release; counterpart: the acquire loads of spinning workers.
  std::atomic<uint64_t> round_{0};
  // Bodies still running; the last one's acq_rel subtraction publishes all of them to the caller's
  // acquire.
  std::atomic<int> running_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::vector<std::thread> threads_;
};

// What a worker does between two polls of something that another worker will do: spins, then
// yields, then sleeps for microseconds.
void RelaxWorker(bool crowded, uint32_t attempt);
// Monotonic clock.
uint64_t NowNs();

}  // namespace eventide
