#include "models/config.h"

#include <cmath>

#include "core/status.h"

namespace eventide {
namespace {

absl::Status CheckRange(const char* name, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is ", value, "; Eventide supports ", low, " to ", high));
}

absl::Status ValidateRope(const RopeConfig& rope) {
  if (!(rope.theta >= 1.0) || !std::isfinite(rope.theta)) {
    return absl::InvalidArgumentError(absl::StrCat("rope_theta is ", rope.theta));
  }
  if (rope.type != RopeType::kDefault && (!(rope.factor > 0) || !std::isfinite(rope.factor))) {
    return absl::InvalidArgumentError(absl::StrCat("rope factor is ", rope.factor));
  }
  if (rope.type == RopeType::kLlama3) {
    if (!(rope.low_freq_factor > 0) || !(rope.high_freq_factor > rope.low_freq_factor) ||
        !std::isfinite(rope.high_freq_factor)) {
      return absl::InvalidArgumentError(
          absl::StrCat("rope low_freq_factor ", rope.low_freq_factor, " and high_freq_factor ",
                       rope.high_freq_factor, ": expected 0 < low < high"));
    }
    RETURN_IF_ERROR(CheckRange("rope original_max_position_embeddings", rope.original_max_positions,
                               1, kMaxPositions));
  }
  return absl::OkStatus();
}

absl::Status ValidateMoe(const ModelConfig& c) {
  if (c.num_experts == 0) {
    if (c.experts_per_token == 0 && c.moe_intermediate == 0 && c.shared_intermediate == 0) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError("expert sizes are given, but the number of experts is 0");
  }
  RETURN_IF_ERROR(CheckRange("the number of experts", c.num_experts, 1, kMaxExperts));
  RETURN_IF_ERROR(CheckRange("experts per token", c.experts_per_token, 1, c.num_experts));
  RETURN_IF_ERROR(CheckRange("the experts' intermediate size", c.moe_intermediate, 1, kMaxHidden));
  return CheckRange("the shared expert's intermediate size", c.shared_intermediate, 0, kMaxHidden);
}

absl::Status ValidateTokens(const ModelConfig& c) {
  RETURN_IF_ERROR(CheckRange("bos_token_id", c.bos, -1, c.vocab - 1));
  for (int eos : c.eos) RETURN_IF_ERROR(CheckRange("eos_token_id", eos, 0, c.vocab - 1));
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateConfig(const ModelConfig& c) {
  RETURN_IF_ERROR(CheckRange("hidden_size", c.hidden, 1, kMaxHidden));
  if (!c.IsMoe()) {
    RETURN_IF_ERROR(CheckRange("intermediate_size", c.intermediate, 1, kMaxHidden));
  }
  RETURN_IF_ERROR(CheckRange("num_hidden_layers", c.layers, 1, kMaxLayers));
  RETURN_IF_ERROR(CheckRange("num_attention_heads", c.heads, 1, kMaxHeads));
  RETURN_IF_ERROR(CheckRange("num_key_value_heads", c.kv_heads, 1, c.heads));
  if (c.heads % c.kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "num_key_value_heads ", c.kv_heads, " does not divide num_attention_heads ", c.heads));
  }
  RETURN_IF_ERROR(CheckRange("head_dim", c.head_dim, 8, kMaxHeadDim));
  if (c.head_dim % 8 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("head_dim is ", c.head_dim, "; Eventide supports multiples of 8"));
  }
  RETURN_IF_ERROR(CheckRange("vocab_size", c.vocab, 1, kMaxVocab));
  RETURN_IF_ERROR(CheckRange("max_position_embeddings", c.max_positions, 1, kMaxPositions));
  if (!(c.rms_eps > 0.0f && c.rms_eps < 1.0f)) {
    return absl::InvalidArgumentError(
        absl::StrCat("rms_norm_eps is ", c.rms_eps, "; expected one between 0 and 1"));
  }
  RETURN_IF_ERROR(CheckRange("sliding_window", c.sliding_window, 0, kMaxPositions));
  if (c.windowed_layers.size() != (c.sliding_window > 0 ? size_t(c.layers) : 0)) {
    return absl::InvalidArgumentError(absl::StrCat("there are ", c.layers, " layers, but ",
                                                   c.windowed_layers.size(), " layer types"));
  }
  if (!IsWeightDType(c.dtype)) {
    return absl::InvalidArgumentError(absl::StrCat("weights of type ", DTypeName(c.dtype)));
  }
  RETURN_IF_ERROR(ValidateRope(c.rope));
  RETURN_IF_ERROR(ValidateMoe(c));
  return ValidateTokens(c);
}

}  // namespace eventide
