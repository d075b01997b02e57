// Log probabilities of given tokens: teacher-forced, in chunks, straight through the runner.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "serve/megakernel_runner.h"

namespace eventide {

// The logarithm of a probability of 0, and the least of any: JSON has no infinity, and this is what vLLM and OpenAI's
// API write for it.
inline constexpr double kLogOfZero = -9999;

struct TokenScore {
  double logprob = 0;
  std::vector<std::pair<TokenId, double>> top;  // descending, ties to the lower id
};

// Of tokens 1, 2, ... given all before each: scores[0] is of tokens[1]. Natural logarithms, in
// double from the device's float logits. Uses slot 0 and KV blocks from 0 on, which must be free;
// no step in flight.
absl::StatusOr<std::vector<TokenScore>> ScoreTokens(MegakernelRunner* runner,
                                                    std::span<const TokenId> tokens, int top);

// The scores of one position: log softmax of `logits`, of `token` and of the `top` largest.
TokenScore ScoreLogits(std::span<const float> logits, TokenId token, int top);

}  // namespace eventide
