// Room for float16. A producer stores x * gain (docs/design.md, the decoder), which may leave
// float16's range where the residual x itself does not. So a norm's gains are packed divided by a
// power of two that brings them to at most 1, and the weights of the linears behind it multiplied
// by it: the products are the same, the scaling of floats by powers of two being exact, and |x *
// gain| <= |x|.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "models/weights.h"

namespace eventide {

// `source` as it is to be packed in float16; outlived by it. Gains that are drawn at random are
// near 1 and stay, so that a device can draw what is behind them. A weight that the factor takes
// beyond 65,504 is an error of its Read.
absl::StatusOr<std::unique_ptr<WeightSource>> WithFloat16Gains(const WeightSource& source);

}  // namespace eventide
