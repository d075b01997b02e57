// Random graphs on the device under test against one CPU worker, word by word.
#pragma once

#include "stress/context.h"

namespace eventide {

// The bytes of every tensor of an executor's program.
std::vector<std::vector<uint8_t>> TensorContents(Executor& executor);
// Weights and inputs follow from the tensor and the salt; everything else is 0xff, which no count
// may be and every checksum notices.
void FillTensors(Executor& executor, uint64_t salt);

StressCase RandomGraphCase(StressRandom* random, const std::string& device);
StressOutcome RunGraphCase(const StressCase& c, StressContext* context);

}  // namespace eventide
