// Decoders (Llama, Mistral, Qwen2, Qwen3 and their mixtures of experts: one builder, driven by
// ModelConfig alone) as graphs. Five hops a layer: qkv, attention, o, gate_up, down; norms, rope,
// biases and the KV append live in them; steps with rows of many tokens have append_kv in front of attention.
//
//   plan -> embedding -> [qkv -> attention -> o -> gate_up -> down] x layers -> final_norm -> head
//   -> sample
//
// With experts a layer ends: o -> router -> route -> gate_up -> down -> combine. With early exit
// (models/decoder_exits.cc) layers compute the tokens that are left.
//
// Token tiles are independent except through attention, which every tile joins.
#pragma once

#include <cstdint>
#include <vector>

#include "core/graph.h"
#include "core/verify.h"
#include "models/config.h"
#include "models/pack.h"

namespace eventide {

inline constexpr int kMostStepTokens = 1 << 20;  // DecoderLimits::max_tokens

// What a step may hold at most: symbols' ranges and the sizes of all buffers. Larger limits compile
// nothing new; they cost memory.
struct DecoderLimits {
  int max_rows = 64;         // sequences of a step, at most 1,024
  int max_tokens = 512;      // query tokens of a step
  int max_outputs = 64;      // tokens of a step whose logits are wanted, at least max_rows
  int max_model_len = 2048;  // tokens of a sequence
  int block_size = 16;       // tokens of a KV block, a power of two
  int64_t num_blocks = 0;
  int64_t partial_bytes = int64_t{32} << 20;  // scratch for attention that is split over workers
  // Of a context that one of the tasks which share it covers at least; 0: some KV pages (ops/plan.h). No bits depend
  // on it.
  int part_tokens = 0;
  // Of a row that has attention's large tiles, query tokens at least; 0: Plan::kLongTokens. No bits depend on it.
  int long_tokens = 0;
  // Experts: > 0 takes those of `drawn_routes`, lines in turn over tokens and steps, instead of the router's
  // choice (benches of imbalance).
  int route_draws = 0;
  // Early exit: > 0 lets tokens leave behind so many layers, and then behind every `exit_every` more, where
  // the tensor `exit_thresholds` lets them (ops/exit_test.h).
  int exit_first = 0;
  int exit_every = 1;
};

struct Decoder {
  ModelConfig config;
  DType storage = DType::kF32;
  DecoderLimits limits;
  Graph graph{"decoder"};
  std::vector<PackJob> weights;  // everything but `rope`
  // Tensors by role.
  TensorId rope;    // float[max_model_len][head_dim / 2][cos, sin]
  TensorId cache;   // storage[layers][blocks][k, v][kv_heads][block_size][head_dim]
  TensorId logits;  // float[max_outputs][logits_stride]
  // Zero between steps; after an aborted one the host has to see to it.
  TensorId merge, arrived;
  TensorId counts;  // i32[kStepCounts] (ops/step_tables.h)
  // Of a mixture of experts (ops/expert_tables.h).
  TensorId tiles;       // ExpertTile[layers][most tiles + 1]
  TensorId tile_count;  // i32[layers]
  TensorId splits;      // i32[layers][kExpertLinears]
  TensorId pairs;       // RoutedPair[layers][max_tokens][experts_per_token]
  TensorId drawn;       // i32[layers][route_draws][experts_per_token]
  // Of early exit (ops/exit_tables.h).
  TensorId exit_thresholds;  // float[layers]: the least cosine to leave behind a layer; above 1: nobody
  TensorId exit_counts;      // i32[layers + 1][kExitCounts]
  TensorId exit_totals;      // u64[layers]: tokens that have left behind a layer, in all steps so far
  int logits_stride = 0;

  bool HasExits() const { return limits.exit_first > 0; }
};

// Refuses limits that no decoder of this model can have, naming the limit. BuildDecoder asks it
// too.
absl::Status CheckDecoderLimits(const ModelConfig& config, const DecoderLimits& limits);

// Refuses what Eventide's ops do not compute, naming the field.
absl::StatusOr<Decoder> BuildDecoder(const ModelConfig& config, DType storage,
                                     const DecoderLimits& limits);

// For Verify: values of the published tensor as `plan` might write them.
VerifyOptions DecoderVerifyOptions(const Decoder& decoder);

// cos and sin of every position, as the tensor `rope` holds them.
std::vector<float> RopeTensor(const Decoder& decoder, int threads = 1);

// Of early exit: how many tokens each layer computed, from what a step left in `exit_counts`.
std::vector<int> TokensOfLayers(const Decoder& decoder, const std::vector<int32_t>& exit_counts);

// Bytes of one KV block over all layers.
int64_t KvBlockBytes(const ModelConfig& config, DType storage, int block_size);

}  // namespace eventide
