#include "serve/step_cost.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "models/weights.h"

namespace eventide {
namespace {

int64_t LinearElements(const ModelConfig& config, bool head) {
  int64_t elements = 0;
  for (const TensorInfo& info : ExpectedTensors(config)) {
    // A tied embedding is the head's weight; an own one gives single rows to the first layer.
    const bool embedding = absl::StrContains(info.name, "embed_tokens");
    if (info.shape.size() != 2 || (embedding && !config.tie_embeddings)) continue;
    if (head || !(embedding || absl::StrContains(info.name, "lm_head")))
      elements += info.Elements();
  }
  return elements;
}

// Over layers, keys that `tokens` tokens behind `context` others look at.
double KeysSeen(const ModelConfig& config, int64_t context, int64_t tokens) {
  double keys = 0;
  for (int layer = 0; layer < config.layers; ++layer) {
    const int64_t window = config.Window(layer) > 0 ? config.Window(layer) : INT64_MAX;
    // The first `growing` tokens see one key more each; the others a whole window.
    const int64_t growing = std::clamp<int64_t>(window - context, 0, tokens);
    keys += static_cast<double>(growing) * (static_cast<double>(context) + 0.5 * (growing + 1));
    if (growing < tokens)
      keys += static_cast<double>(tokens - growing) * static_cast<double>(window);
  }
  return keys;
}

}  // namespace

int64_t StepWeightBytes(const ModelConfig& config, DType storage) {
  return LinearElements(config, /*head=*/true) * DTypeSize(storage);
}

int64_t ExpertBytes(const ModelConfig& config, DType storage) {
  return int64_t{3} * config.moe_intermediate * config.hidden * DTypeSize(storage);
}

int64_t StepKvBytes(const ModelConfig& config, DType storage, int cached) {
  int64_t tokens = 0;
  for (int layer = 0; layer < config.layers; ++layer) {
    const int window = config.Window(layer);
    tokens += window > 0 ? std::min(cached, window) : cached;
  }
  return tokens * 2 * config.KeyValueWidth() * DTypeSize(storage);
}

StepFlops CountFlops(const ModelConfig& config, const StepShape& shape, int row_tokens) {
  const double tokens = static_cast<double>(shape.batch) * row_tokens + shape.chunk;
  const double outputs = static_cast<double>(shape.batch) * row_tokens + (shape.chunk > 0 ? 1 : 0);
  int64_t weights = LinearElements(config, /*head=*/false);
  if (config.IsMoe()) {
    const int64_t others = int64_t{config.num_experts - config.experts_per_token} * config.layers;
    weights -= others * 3 * config.moe_intermediate * config.hidden;
  }
  StepFlops flops;
  flops.linears = 2.0 * static_cast<double>(weights) * tokens;
  flops.head = 2.0 * static_cast<double>(config.vocab) * config.hidden * outputs;
  const double keys = shape.batch * KeysSeen(config, shape.context, row_tokens) +
                      KeysSeen(config, shape.chunk_context, shape.chunk);
  flops.attention = 4.0 * keys * config.heads * config.head_dim;  // with its key, with its value
  return flops;
}

}  // namespace eventide
