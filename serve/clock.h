// Time as serving sees it: nanoseconds of a steady clock. Injected everywhere, so that tests and
// simulations run in virtual time.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>

namespace eventide {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual int64_t NowNs() = 0;
  // Returns at `time_ns` or later; at once when that has passed.
  virtual void SleepUntilNs(int64_t time_ns) = 0;
};

class SteadyClock final : public Clock {
 public:
  int64_t NowNs() override {
    auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
  }
  void SleepUntilNs(int64_t time_ns) override {
    std::this_thread::sleep_for(std::chrono::nanoseconds(std::max<int64_t>(0, time_ns - NowNs())));
  }
};

// Moves only when told to; a sleep jumps to its end.
class ManualClock final : public Clock {
 public:
  int64_t NowNs() override { return now_ns_; }
  void SleepUntilNs(int64_t time_ns) override { now_ns_ = std::max(now_ns_, time_ns); }
  void Advance(int64_t ns) { now_ns_ += ns; }

 private:
  int64_t now_ns_ = 0;
};

}  // namespace eventide
