// What the two halves of the decoder builder share: shapes that follow from a configuration, and
// the jobs that fill each weight. Included by models/decoder*.cc only.
#pragma once

#include <string>
#include <vector>

#include "device/layout.h"
#include "models/decoder.h"

namespace eventide {

struct DecoderShape {
  explicit DecoderShape(const ModelConfig& c)
      : group(c.heads / c.kv_heads),
        qkv_stride(RoundUp((group + 2) * c.head_dim, kTileRows)),
        qkv_rows(c.kv_heads * qkv_stride),
        hidden_rows(RoundUp(c.hidden, kTileRows)),
        mlp_rows(RoundUp(2 * c.intermediate, kTileRows)),
        vocab_rows(RoundUp(c.vocab, kTileRows)) {}

  int group;       // query heads of a KV head
  int qkv_stride;  // packed rows of one KV head: its query heads, key, value, zeros
  int qkv_rows, hidden_rows, mlp_rows, vocab_rows;  // packed rows of the linears
};

// A packed linear; `bias` is -1 where there is none, and has its rows in the same order.
struct LinearTensors {
  int weight = -1, bias = -1;
};

// Sizes that attention's split of long contexts is bounded by: items, split tiles, partials.
struct SplitLimits {
  int items = 0, groups = 0, partials = 0;
};
SplitLimits SplitOf(const Decoder& decoder);

struct DecoderTensors {
  SplitLimits split;
  EventId plan_done;  // publishes counts
  TensorId counts, row_start, token_row, row_output, output_token, items;
  TensorId x, xa, xm, ssq_a, ssq_m, qkv, attn, act, partials, merge, xf, logits, best;
  TensorId unused;  // stands for operands that a call does not use
  TensorId norm_a, norm_m, q_norm, k_norm, table, rope, cache;
  LinearTensors qkv_w, o_w, gate_up_w, down_w, head_w;
};
DecoderTensors AddDecoderTensors(Decoder* decoder, const Expr& rows, const Expr& tokens);

// Jobs for all weights of a decoder.
std::vector<PackJob> DecoderJobs(const Decoder& decoder, const DecoderTensors& t);

}  // namespace eventide
