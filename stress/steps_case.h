// Whole decoders of random shapes: sequences in steps of random mixtures (chunks and decode rows,
// any batch, any workers and policy), against each sequence alone in the plainest steps. Logits and
// tokens agree bit by bit, logits with float64 as the storage type allows; memory that belongs to
// nobody stays as it was, and whatever is read before it was written is NaN.
#pragma once

#include "stress/context.h"

namespace eventide {

// Fields of the sequences; the model's are there already (RandomModel).
void RandomStepsCase(StressRandom* random, StressCase* c);
StressOutcome RunStepsCase(const StressCase& c, StressContext* context);

}  // namespace eventide
