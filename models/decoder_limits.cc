// What no decoder can have, what Eventide's ops do not compute, and which steps Verify looks at.
#include <bit>
#include <random>

#include "absl/strings/str_cat.h"
#include "core/status.h"
#include "models/decoder_parts.h"
#include "ops/plan.h"

namespace eventide {

absl::Status CheckSupported(const ModelConfig& c, const DecoderLimits& limits) {
  if (c.IsMoe() && c.mlp_bias) {
    return absl::UnimplementedError("mlp_bias is set: experts are computed without biases");
  }
  if (c.head_dim % 8 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("head_dim is ", c.head_dim, "; attention needs a multiple of 8"));
  }
  if (c.vocab > 1 << 21) {
    return absl::InvalidArgumentError(
        absl::StrCat("vocab_size is ", c.vocab, "; sampling handles at most 2097152"));
  }
  if (limits.exit_first > 0 && c.wide_qk_norm) {
    return absl::UnimplementedError(
        "early exit of models that norm queries and keys over all heads (OLMoE) is not supported: leave out "
        "--exit-threshold");
  }
  for (int layer = 1; layer < c.layers; ++layer) {
    if (c.Window(layer) == c.Window(0)) continue;
    if (c.sliding_window >= limits.max_model_len) break;
    return absl::UnimplementedError(
        absl::StrCat("layer ", layer,
                     " has another sliding window than layer 0; choose a maximum model length of "
                     "at most ",
                     c.sliding_window, ", where windows make no difference"));
  }
  return absl::OkStatus();
}

absl::Status CheckDecoderLimits(const ModelConfig& c, const DecoderLimits& l) {
  const auto check = [](const char* name, int64_t value, int64_t low, int64_t high) {
    if (value >= low && value <= high) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is ", value, "; it must be from ", low, " to ", high));
  };
  RETURN_IF_ERROR(
      check("the number of sequences in a step (max-num-seqs)", l.max_rows, 1, Plan::kMaxRows));
  RETURN_IF_ERROR(
      check("the number of tokens in a step (max-num-batched-tokens)", l.max_tokens, 1, kMostStepTokens));
  RETURN_IF_ERROR(check("the number of outputs of a step", l.max_outputs, l.max_rows, 1 << 20));
  RETURN_IF_ERROR(
      check("the longest sequence (max-model-len)", l.max_model_len, 1, c.max_positions));
  RETURN_IF_ERROR(check("the block size (block-size)", l.block_size, 1, 1024));
  if (!std::has_single_bit(static_cast<unsigned>(l.block_size))) {
    return absl::InvalidArgumentError(absl::StrCat("the block size (block-size) is ", l.block_size,
                                                   "; it must be a power of two"));
  }
  RETURN_IF_ERROR(check("the number of layers before tokens may leave", l.exit_first, l.exit_first != 0, c.layers - 1));
  if (l.exit_first > 0) {
    RETURN_IF_ERROR(check("the number of layers between places to leave", l.exit_every, 1, c.layers));
  }
  return check("the number of KV blocks (num-blocks)", l.num_blocks, 1, INT32_MAX);
}

VerifyOptions DecoderVerifyOptions(const Decoder& decoder) {
  VerifyOptions options;
  const int counts = decoder.counts.index;
  const int most_items = SplitOf(decoder).items;
  const int64_t most_outputs = decoder.limits.max_outputs;
  // Symbols are rows, tokens. Any count of items from one per row that has tokens up to the table's
  // size, and any count of outputs, may come out of a step.
  options.sample_published = [=, &decoder](const SymbolValues& symbols, uint64_t seed) -> PublishedValues {
    std::mt19937_64 random(seed);
    const int64_t tokens = symbols[1];
    const int64_t items =
        tokens == 0 ? 0 : 1 + static_cast<int64_t>(random() % Min<int64_t>(most_items, 6));
    const int64_t most = Min(tokens, most_outputs);
    const int64_t outputs = seed % 3 == 0 ? 0 : static_cast<int64_t>(random() % (most + 1));
    const PublishedValues experts = SampleExperts(decoder, tokens, seed);
    const PublishedValues exits = SampleExits(decoder, tokens, seed);
    return [=](int tensor, int64_t element) -> int64_t {
      if (tensor == decoder.exit_counts.index) return exits(tensor, element);
      if (tensor != counts) return experts(tensor, element);
      if (element == kCountItems) return items;
      if (element == kCountOutputs) return outputs;
      return element == kCountTokens ? tokens : 0;
    };
  };
  return options;
}

}  // namespace eventide
