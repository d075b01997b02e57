#include "runtime/cuda_flights.h"

#include <algorithm>
#include <utility>

#include "core/status.h"

namespace eventide {

CudaFlights::~CudaFlights() {
  for (const Flight& flight : flights_) {
    if (flight.started != nullptr) driver_->EventDestroy(flight.started);
    if (flight.ended != nullptr) driver_->EventDestroy(flight.ended);
  }
}

absl::Status CudaFlights::Open(const CudaDriver* driver, CuStream stream, bool timed) {
  driver_ = driver;
  stream_ = stream;
  timed_ = timed;
  const unsigned flags = timed ? 0 : kCuEventNoTiming;
  for (Flight& flight : flights_) {
    RETURN_IF_ERROR(
        driver_->Check(driver_->EventCreate(&flight.started, flags), "creating an event"));
    RETURN_IF_ERROR(
        driver_->Check(driver_->EventCreate(&flight.ended, flags), "creating an event"));
  }
  return absl::OkStatus();
}

absl::Status CudaFlights::Begin() {
  if (!timed_) return absl::OkStatus();
  return driver_->Check(driver_->EventRecord(At(ended_).started, stream_), "recording an event");
}

absl::Status CudaFlights::End() {
  RETURN_IF_ERROR(
      driver_->Check(driver_->EventRecord(At(ended_).ended, stream_), "recording an event"));
  ++ended_;
  ++count_;
  return absl::OkStatus();
}

absl::Status CudaFlights::Retire() {
  const uint64_t step = ended_ - static_cast<uint64_t>(count_--);
  const bool before_known = std::exchange(end_known_, true);
  gap_ms_ = -1;
  if (!timed_) return absl::OkStatus();
  const Flight& flight = At(step);
  float ms = 0;
  RETURN_IF_ERROR(driver_->Check(driver_->EventElapsedTime(&ms, flight.started, flight.ended),
                                 "timing a step"));
  step_ms_ = ms;
  if (!before_known) return absl::OkStatus();
  RETURN_IF_ERROR(driver_->Check(driver_->EventElapsedTime(&ms, At(step - 1).ended, flight.started),
                                 "timing the gap before a step"));
  gap_ms_ = std::max(0.0, static_cast<double>(ms));
  return absl::OkStatus();
}

}  // namespace eventide
