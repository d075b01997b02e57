// What a step must write before anything reads it, filled so that a read that comes too early
// shows: NaNs, and counts that no table has.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "models/decoder.h"
#include "runtime/executor.h"

namespace eventide {

using PoisonBytes = std::vector<std::pair<Buffer, std::vector<uint8_t>>>;

// Scratch and outputs of a decoder on an executor. Activations are padded to whole steps of all
// segments; the padding is zero from the start and never written, so it is zero here too.
PoisonBytes PoisonFor(const Decoder& decoder, const Executor& executor);

// Only while no step is in flight.
absl::Status Apply(const PoisonBytes& poison, Executor* executor);

}  // namespace eventide
