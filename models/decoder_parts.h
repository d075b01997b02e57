// What the two halves of the decoder builder share: shapes that follow from a configuration, and
// the jobs that fill each weight. Included by models/decoder*.cc only.
#pragma once

#include <string>
#include <vector>

#include "device/layout.h"
#include "models/decoder.h"
#include "ops/exit_tables.h"

namespace eventide {

struct DecoderShape {
  explicit DecoderShape(const ModelConfig& c)
      : group(c.heads / c.kv_heads),
        qkv_stride(RoundUp((group + 2) * c.head_dim, kTileRows)),
        qkv_rows(c.kv_heads * qkv_stride),
        kv_stride(RoundUp(2 * c.head_dim, kTileRows)),
        hidden_rows(RoundUp(c.hidden, kTileRows)),
        dense_width(c.IsMoe() ? c.shared_intermediate : c.intermediate),
        mlp_rows(RoundUp(2 * dense_width, kTileRows)),
        router_rows(c.num_experts + (c.shared_intermediate > 0 ? 1 : 0)),
        expert_rows(RoundUp(2 * RoundUp(c.moe_intermediate, 8), kTileRows)),
        vocab_rows(RoundUp(c.vocab, kTileRows)) {}

  int group;       // query heads of a KV head
  int qkv_stride;  // packed rows of one KV head: its query heads, key, value, zeros
  int qkv_rows;
  int kv_stride;    // packed rows of one KV head's key and value, for tokens that left
  int hidden_rows;  // packed rows of the linears
  int dense_width;            // of the MLP that every token passes: all of it, or the shared expert
  int mlp_rows;
  int router_rows;  // outputs: experts, then the shared expert's gate
  int expert_rows;  // packed rows of one expert's gate and up
  int vocab_rows;
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

// A layer of experts: tables that `route` makes, and what is computed with them (ops/expert_tables.h).
struct ExpertTensors {
  EventId routed;  // per layer; publishes tiles, tile_count and splits
  int max_tiles = 0;
  TensorId logits, pairs, counts, bases, pair_slot, slot_token, tiles, tile_count, splits;
  TensorId act, outputs, shared, drawn;
  LinearTensors router_w, gate_up_w, down_w;
};

// Early exit: who is left of a step, and what those who left owe (ops/exit_tables.h).
struct ExitTensors {
  ExitPoints points = {};
  EventId decided_at;  // [layers + 1]: of the point in front of a layer; publishes counts
  EventId settled;     // [layers + 1][1]: states are in place
  TensorId counts, thresholds, decided, state, state_sums, row_place, output_place, target;
  TensorId totals, left, left_sums, input, projected;
  LinearTensors kv_w;  // keys and values alone
};

struct DecoderTensors {
  ExpertTensors experts;
  ExitTensors exits;
  SplitLimits split;
  EventId plan_done;  // publishes counts
  TensorId counts, row_start, token_row, row_output, output_token, items;
  TensorId x, xa, xm, ssq_a, ssq_m, qkv, attn, act, partials, merge, xf, logits, best, drawn, arrived;
  TensorId unused;  // stands for operands that a call does not use
  TensorId norm_a, norm_m, q_norm, k_norm, table, rope, cache;
  LinearTensors qkv_w, o_w, gate_up_w, down_w, head_w;
};
DecoderTensors AddDecoderTensors(Decoder* decoder, const Expr& rows, const Expr& tokens);

// The append of keys and values to the cache in front of attention, in steps in which some row has many tokens.
struct AppendsPlace {
  Graph* graph;
  const Decoder* decoder;
  const DecoderTensors* tensors;
  Expr tokens, appends;
  int variant;
  EventId ready;  // [layers][KV heads]: raw queries, keys and values
};
// Tasks of each KV head; whether there are any, 0 or 1, which every task of attention works out.
Expr AppendsOf(const Decoder& decoder, const Expr& rows, const Expr& tokens);
Expr HasAppends(const Decoder& decoder, const Expr& rows, const Expr& tokens);
// Calls the grid; returns what it notifies, [layers][KV heads].
EventId AddAppends(const AppendsPlace& place);

// What a layer of experts stands between.
struct ExpertsPlace {
  Graph* graph;
  const Decoder* decoder;
  const DecoderTensors* tensors;
  Expr tokens;
  int variant;
  EventId x_ready, o_done;  // [layers + 1][token tiles], [layers][token tiles]
  EventId mlp_done;         // of early exit only: [layers][token tiles]
};
// Calls the grids of a layer of experts, from behind `o` to the next layer's input.
void AddExperts(const ExpertsPlace& place);

// The most slots that so many tokens can fill: MostSlots.
Expr SlotsOf(const ModelConfig& config, const Expr& tokens);
// Values of `tiles`, `tile_count` and `splits` as `route` might write them in a step of so many tokens.
PublishedValues SampleExperts(const Decoder& decoder, int64_t tokens, uint64_t seed);

// What early exit stands between.
struct ExitsPlace {
  Graph* graph;
  const Decoder* decoder;
  const DecoderTensors* tensors;
  Expr tokens;
  int variant;
  // [token tiles], [layers + 1][token tiles], [layers][token tiles], [layers][KV heads]
  EventId embedded, x_ready, mlp_done, attn_done;
};
void AddExitBegin(const ExitsPlace& place);          // in front of the layers
void AddExitKeysAndValues(const ExitsPlace& place);  // of those who left, behind attention
void AddExitPoint(const ExitsPlace& place);          // behind a layer

// Where the decoder's tokens may leave.
ExitPoints ExitPointsOf(const Decoder& decoder);
// The layer behind the last point in front of `layer`, or 0: whose line of the counts holds for it.
Expr ExitStart(const ExitPoints& points, const Expr& layer);
// Values of `exit_counts` as points might write them.
PublishedValues SampleExits(const Decoder& decoder, int64_t tokens, uint64_t seed);

// Refuses what Eventide's ops do not compute, naming the field.
absl::Status CheckSupported(const ModelConfig& config, const DecoderLimits& limits);

// Jobs for all weights of a decoder.
std::vector<PackJob> DecoderJobs(const Decoder& decoder, const DecoderTensors& t);

}  // namespace eventide
