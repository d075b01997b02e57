// The serving engine on decoders of random shapes: requests of random lengths in pools that are too
// small for them, some cancelled at some step, against each request alone in an engine of its own.
// Tokens agree, every request has exactly one outcome, all memory comes back, and there is
// progress.
#pragma once

#include "stress/context.h"

namespace eventide {

// Fields of the requests; the model's are there already (RandomModel).
void RandomServeCase(StressRandom* random, StressCase* c);
StressOutcome RunServeCase(const StressCase& c, StressContext* context);

}  // namespace eventide
