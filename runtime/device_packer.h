// Packs weights in the memory they are used from, by orders of device/pack.h. What is read from files goes
// through a few slots of pinned memory, so that reading, copying and packing overlap:
//
//   Open; for each batch: Host(slot) and fill it, Submit(slot, ...); Finish.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "core/status.h"
#include "device/pack.h"

namespace eventide {

class DevicePacker {
 public:
  virtual ~DevicePacker() = default;

  // Slots of `bytes` each, on the host and on the device, until Finish. Called once.
  virtual absl::Status Open(int slots, int64_t bytes) = 0;
  // A slot's memory to write to, once the device has read what was submitted from it before.
  virtual absl::StatusOr<uint8_t*> Host(int slot) = 0;
  // Where the device finds it: the addresses that orders and spans name.
  virtual uint64_t Device(int slot) const = 0;
  // Copies the slot's first `bytes` to the device and then carries out `orders` there, behind what was
  // submitted before. Returns at once.
  virtual absl::Status Submit(int slot, int64_t bytes, absl::Span<const PackOrder> orders) = 0;
  // Waits for everything and gives the slots back.
  virtual absl::Status Finish() = 0;
};

}  // namespace eventide
