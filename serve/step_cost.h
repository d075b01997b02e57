// What a step of a given shape cannot avoid: bytes that it reads, operations that it computes. What
// floors of step times and TFLOP/s are made of.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "models/config.h"

namespace eventide {

// Decode rows and, beside them, at most one row of prefill.
struct StepShape {
  int batch = 1;          // decode rows; 0: none, where there is a chunk
  int context = 512;      // tokens with KV of each; at a model's very end fewer (StepBench::Cached)
  int chunk = 0;          // prompt tokens of one more row, the last with logits; 0: no such row
  int chunk_context = 0;  // tokens with KV before them
};

// Bytes: the weights of all linears and of the head once (with all experts), ...
int64_t StepWeightBytes(const ModelConfig& config, DType storage);
int64_t ExpertBytes(const ModelConfig& config, DType storage);  // of one expert of one layer
// ... and the KV of a row with `cached` tokens (of windowed layers, the window's).
int64_t StepKvBytes(const ModelConfig& config, DType storage, int cached);

// Operations, a product and its sum counting two. Nothing is counted for norms, rope, softmax and
// routing.
struct StepFlops {
  double linears = 0;    // 2 x weights of the layers' linears (of experts, a token's) x tokens
  double attention = 0;  // causal: scores and values of every token with itself and all before it
  double head = 0;       // 2 x weights of the head x tokens that have logits
  double total() const { return linears + attention + head; }
};
// Of `batch` rows of `row_tokens` tokens, all with logits, and of the chunk. Contexts are the
// shape's own.
StepFlops CountFlops(const ModelConfig& config, const StepShape& shape, int row_tokens);

}  // namespace eventide
