// The steps in flight on a stream: events before and behind each, and what they say of its time.
#pragma once

#include <cstdint>

#include "jit/driver.h"

namespace eventide {

class CudaFlights {
 public:
  static constexpr int kMost = 2;

  CudaFlights() = default;
  CudaFlights(const CudaFlights&) = delete;
  ~CudaFlights();

  // The context is current, here and whenever this is used or goes away.
  absl::Status Open(const CudaDriver* driver, CuStream stream, bool timed);

  // Between the two, a step's launches. It is in flight once End has returned without an error.
  absl::Status Begin();
  absl::Status End();

  int count() const { return count_; }
  // Of the oldest step in flight.
  CuEvent OldestEnd() const { return At(ended_ - count_).ended; }
  // Takes the oldest step out, which has ended, and its times, where these were asked for.
  absl::Status Retire();
  // The step taken out last was aborted: the time from its end means nothing.
  void ForgetEnd() { end_known_ = false; }

  // Of the step taken out last: what it took, from when the stream reached it (a launch's own time
  // is the step's); what had passed since the end of the step before it (copies for it included),
  // negative where that is not known.
  double step_ms() const { return step_ms_; }
  double gap_ms() const { return gap_ms_; }

 private:
  struct Flight {
    CuEvent started = nullptr, ended = nullptr;
  };
  // One more: the end of the step before the oldest is still asked for.
  static constexpr int kFlights = kMost + 1;
  const Flight& At(uint64_t step) const { return flights_[step % kFlights]; }

  const CudaDriver* driver_ = nullptr;
  CuStream stream_ = nullptr;
  bool timed_ = false;
  Flight flights_[kFlights];
  uint64_t ended_ = 0;  // calls of End
  int count_ = 0;
  bool end_known_ = false;
  double step_ms_ = 0, gap_ms_ = -1;
};

}  // namespace eventide
