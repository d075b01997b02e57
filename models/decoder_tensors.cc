// The tensors of a decoder's graph: step tables, activations, weights, state.
#include <thread>

#include "core/status.h"
#include "models/decoder_parts.h"
#include "models/rope.h"
#include "ops/expert_tables.h"
#include "ops/linear_epilogue.h"
#include "ops/step_tables.h"

namespace eventide {
namespace {

class Tensors {
 public:
  Tensors(Decoder* decoder, const Expr& rows, const Expr& tokens)
      : d_(*decoder),
        g_(decoder->graph),
        c_(decoder->config),
        shape_(c_),
        rows_(rows),
        tokens_(tokens) {
    t_.split = SplitOf(d_);
  }

  DecoderTensors Add() {
    AddStepTables();
    AddActivations();
    AddWeights();
    if (c_.IsMoe()) AddExpertTensors();
    if (d_.HasExits()) AddExitTensors();
    return t_;
  }

 private:
  TensorId Scratch(const char* name, DType type, std::vector<Expr> shape) {
    return g_.AddTensor(name, type, std::move(shape), TensorRole::kScratch);
  }
  TensorId Weight(const char* name, DType type, std::vector<Expr> shape) {
    return g_.AddTensor(name, type, std::move(shape), TensorRole::kWeight);
  }
  // Activations in groups of 8 tokens (device/layout.h). Regions count columns in logical order:
  // column c is elements 8 c ... 8 c + 7, which names the same parts, if not the same places.
  TensorId Activations(const char* name, const Expr& tokens, int k) {
    return Scratch(name, d_.storage,
                   {CeilDiv(tokens, 8), static_cast<int64_t>(ActivationGroup(k))});
  }

  void AddStepTables() {
    t_.plan_done = g_.AddEvents("plan_done", {1});
    const int most = Max(Max(t_.split.items, t_.split.groups), d_.limits.max_tokens);
    t_.counts = g_.AddPublished("counts", {int{kStepCounts}}, 0, most, t_.plan_done, {0});
    d_.counts = t_.counts;
    t_.row_start = Scratch("row_start", DType::kI32, {rows_ + 1});
    t_.token_row = Scratch("token_row", DType::kI32, {tokens_});
    t_.row_output = Scratch("row_output", DType::kI32, {rows_});
    t_.output_token = Scratch("output_token", DType::kI32, {d_.limits.max_outputs});
    t_.items = Scratch("items", DType::kI32, {t_.split.items, int{sizeof(AttentionItem) / 4}});
  }

  void AddActivations() {
    const int blocks = CeilDiv(c_.hidden, 16);
    const int outputs = d_.limits.max_outputs;
    // Behind the step's tokens, the states of those who left.
    const Expr states = d_.HasExits() ? tokens_ * 2 : tokens_;
    t_.x = Scratch("x", DType::kF32, {states, c_.hidden});
    t_.xa = Activations("xa", tokens_, c_.hidden);
    t_.xm = Activations("xm", tokens_, c_.hidden);
    t_.ssq_a = Scratch("ssq_a", DType::kF32, {states, blocks});
    t_.ssq_m = Scratch("ssq_m", DType::kF32, {tokens_, blocks});
    t_.qkv = Scratch("qkv", DType::kF32, {tokens_, shape_.qkv_rows});
    t_.attn = Activations("attn", tokens_, c_.QueryWidth());
    if (shape_.dense_width > 0) t_.act = Activations("act", tokens_, shape_.dense_width);
    const int splits = AttentionSplits(c_.head_dim, shape_.group, DTypeSize(d_.storage));
    // State, not scratch: tasks of one grid write and read these, ordered by arrivals at `merge`,
    // not by events; and the last to arrive leaves zeros in `merge` for the next layer and step.
    t_.partials =
        g_.AddTensor("partials", DType::kF32,
                     {Max(1, t_.split.partials), c_.heads, c_.head_dim + 2}, TensorRole::kState);
    d_.merge = t_.merge = g_.AddTensor("merge", DType::kU32, {t_.split.groups, c_.kv_heads, splits},
                            TensorRole::kState);
    t_.xf = Activations("xf", outputs, c_.hidden);
    d_.logits_stride = shape_.vocab_rows;
    d_.logits = t_.logits =
        g_.AddTensor("logits", DType::kF32, {outputs, d_.logits_stride}, TensorRole::kOutput);
    t_.best = Scratch("best", DType::kI32, {outputs, shape_.vocab_rows / kBestIds, 2});
    // State for the reasons above.
    t_.drawn = g_.AddTensor("drawn", DType::kI32, {outputs}, TensorRole::kState);
    d_.arrived = t_.arrived =
        g_.AddTensor("arrived", DType::kU32, {d_.limits.max_rows}, TensorRole::kState);
    t_.unused = Scratch("unused", DType::kU8, {1});
  }

  // A packed linear and its bias; `layers` 0: not per layer.
  LinearTensors AddLinear(const std::string& name, int layers, int rows, int k, bool bias) {
    return AddLinear(name, layers, rows, k, bias, TileRows(rows));
  }
  LinearTensors AddLinear(const std::string& name, int layers, int rows, int k, bool bias,
                          int height) {
    std::vector<Expr> shape = {Max(layers, 1), rows / height,
                               static_cast<int64_t>(PackedTile(height, k))};
    LinearTensors tensors;
    tensors.weight = Weight((name + "_w").c_str(), d_.storage, std::move(shape)).index;
    if (bias) {
      tensors.bias = Weight((name + "_b").c_str(), d_.storage, {Max(layers, 1), rows}).index;
    }
    return tensors;
  }

  void AddWeights() {
    const int layers = c_.layers;
    const DType type = d_.storage;
    t_.norm_a = Weight("norm_attention", type, {layers + 1, c_.hidden});
    t_.norm_m = Weight("norm_mlp", type, {layers, c_.hidden});
    t_.q_norm = t_.k_norm = t_.norm_m;  // not read
    if (c_.qk_norm || c_.wide_qk_norm) {
      const bool wide = c_.wide_qk_norm;
      t_.q_norm = Weight("q_norm", type, {layers, wide ? c_.QueryWidth() : c_.head_dim});
      t_.k_norm = Weight("k_norm", type, {layers, wide ? c_.KeyValueWidth() : c_.head_dim});
    }
    const bool mlp_bias = c_.mlp_bias;
    t_.qkv_w = AddLinear("qkv", layers, shape_.qkv_rows, c_.hidden, c_.attention_bias);
    t_.o_w = AddLinear("o", layers, shape_.hidden_rows, c_.QueryWidth(), c_.attention_output_bias);
    if (shape_.dense_width > 0) {
      t_.gate_up_w = AddLinear("gate_up", layers, shape_.mlp_rows, c_.hidden, mlp_bias);
      t_.down_w = AddLinear("down", layers, shape_.hidden_rows, shape_.dense_width, mlp_bias);
    }
    t_.head_w = AddLinear("head", 0, shape_.vocab_rows, c_.hidden, false);
    t_.table = TensorId{t_.head_w.weight};
    if (!c_.tie_embeddings) t_.table = Weight("embedding", type, {1, c_.vocab, c_.hidden});
    d_.rope = t_.rope =
        Weight("rope", DType::kF32, {1, d_.limits.max_model_len, c_.head_dim / 2, 2});
    const int64_t block = int64_t{2} * c_.kv_heads * d_.limits.block_size * c_.head_dim;
    d_.cache = t_.cache =
        g_.AddTensor("kv_cache", type, {layers, d_.limits.num_blocks, block}, TensorRole::kState);
  }

  void AddExpertTensors() {
    ExpertTensors& e = t_.experts;
    const int layers = c_.layers, experts = c_.num_experts;
    const int64_t most_pairs = int64_t{d_.limits.max_tokens} * c_.experts_per_token;
    const int64_t most_slots = MostSlots(most_pairs, experts);
    e.max_tiles = static_cast<int>(MostTiles(most_pairs, experts));
    const Expr slots = SlotsOf(c_, tokens_);
    // Of one layer each: what it publishes must not change while a layer still reads it.
    e.routed = g_.AddEvents("routed", {layers});
    e.tiles = g_.AddPublished("tiles", {layers, e.max_tiles + 1, int{sizeof(ExpertTile) / 4}}, 0,
                              Max<int64_t>(most_slots, experts), e.routed, {At(0)});
    e.tile_count = g_.AddPublished("tile_count", {layers}, 1, e.max_tiles, e.routed, {At(0)});
    e.splits = g_.AddPublished("splits", {layers, int{kExpertLinears}}, 1,
                               Max(shape_.expert_rows, shape_.hidden_rows) / kTileRows, e.routed, {At(0)});
    d_.tiles = e.tiles;
    d_.tile_count = e.tile_count;
    d_.splits = e.splits;
    const Expr groups = CeilDiv(tokens_, 8);
    e.logits = Scratch("router_logits", DType::kF32, {tokens_, shape_.router_rows});
    // Of each layer, so that benches can see after a step where its tokens went.
    e.pairs = Scratch("pairs", DType::kI32,
                      {layers, tokens_, c_.experts_per_token * int{sizeof(RoutedPair) / 4}});
    d_.pairs = e.pairs;
    e.counts = Scratch("group_counts", DType::kI32, {groups, experts});
    e.bases = Scratch("group_bases", DType::kI32, {groups, experts});
    e.pair_slot = Scratch("pair_slot", DType::kI32, {tokens_, c_.experts_per_token});
    e.slot_token = Scratch("slot_token", DType::kI32, {slots});
    e.act = Activations("expert_act", slots, c_.moe_intermediate);
    e.outputs = Scratch("expert_outputs", DType::kF32, {slots, c_.hidden});
    e.shared = e.outputs;  // not read
    if (c_.shared_intermediate > 0) {
      e.shared = Scratch("shared_output", DType::kF32, {tokens_, c_.hidden});
    }
    const int draws = d_.limits.route_draws;
    d_.drawn = e.drawn = g_.AddTensor("drawn_routes", DType::kI32,
                                      {layers, Max(draws, 1), c_.experts_per_token},
                                      TensorRole::kInput);
    e.router_w = AddLinear("router", layers, RoundUp(shape_.router_rows, kTileRows), c_.hidden, false);
    e.gate_up_w =
        AddLinear("expert_gate_up", layers, experts * shape_.expert_rows, c_.hidden, false, kTileRows);
    e.down_w = AddLinear("expert_down", layers, experts * shape_.hidden_rows, c_.moe_intermediate,
                         false, kTileRows);
  }

  void AddExitTensors() {
    ExitTensors& e = t_.exits;
    const int layers = c_.layers, blocks = CeilDiv(c_.hidden, 16);
    const int rows = c_.kv_heads * shape_.kv_stride;
    e.points = ExitPointsOf(d_);
    e.decided_at = g_.AddEvents("exit_decided", {layers + 1});
    e.settled = g_.AddEvents("exit_settled", {layers + 1, 1});
    const int most = Max(t_.split.items, d_.limits.max_tokens);
    d_.exit_counts = e.counts =
        g_.AddPublished("exit_counts", {layers + 1, int{kExitCounts}}, 0, most, e.decided_at,
                        {ExitStart(e.points, At(0))});
    d_.exit_thresholds = e.thresholds =
        g_.AddTensor("exit_thresholds", DType::kF32, {layers}, TensorRole::kInput);
    d_.exit_totals = e.totals = g_.AddTensor("exit_totals", DType::kU64, {layers}, TensorRole::kState);
    e.decided = Scratch("exit_flags", DType::kI32, {tokens_});
    e.state = Scratch("exit_state", DType::kF32, {tokens_, c_.hidden});
    e.state_sums = Scratch("exit_state_sums", DType::kF32, {tokens_, blocks});
    e.row_place = Scratch("row_place", DType::kI32, {rows_});
    // A first dim of its own: of so many outputs as layers, layers would see one each.
    e.output_place = Scratch("output_place", DType::kI32, {1, d_.limits.max_outputs});
    e.target = Scratch("exit_target", DType::kI32, {tokens_});
    e.left = Scratch("exit_places", DType::kI32, {tokens_, int{sizeof(ExitPlace) / 4}});
    e.left_sums = Scratch("exit_left_sums", DType::kF32, {tokens_, blocks});
    // Of each layer, so that none waits for another.
    e.input = Scratch("exit_inputs", d_.storage,
                      {layers, CeilDiv(tokens_, 8), static_cast<int64_t>(ActivationGroup(c_.hidden))});
    e.projected = Scratch("exit_projected", DType::kF32, {layers, tokens_, rows});
    e.kv_w = AddLinear("exit_kv", layers, rows, c_.hidden, c_.attention_bias);
  }

  Decoder& d_;
  Graph& g_;
  const ModelConfig& c_;
  const DecoderShape shape_;
  const Expr rows_, tokens_;
  DecoderTensors t_;
};

}  // namespace

SplitLimits SplitOf(const Decoder& d) {
  const int group = d.config.heads / d.config.kv_heads;
  const int64_t slot = int64_t{d.config.heads} * (d.config.head_dim + 2) * 4;
  const int least =
      MinAttentionItems(d.limits.max_rows, d.limits.max_tokens, d.config.head_dim, group,
                        DTypeSize(d.storage));
  // Room for splits beside the least; a split tile is one of `groups`.
  return {least + 4096, 1024,
          static_cast<int>(Min<int64_t>(d.limits.partial_bytes / slot, 1 << 20))};
}

ExitPoints ExitPointsOf(const Decoder& d) {
  const int first = d.limits.exit_first, every = d.limits.exit_every;
  return {first, every, first + (d.config.layers - 1 - first) / every * every};
}

DecoderTensors AddDecoderTensors(Decoder* decoder, const Expr& rows, const Expr& tokens) {
  return Tensors(decoder, rows, tokens).Add();
}

std::vector<float> RopeTensor(const Decoder& decoder, int threads) {
  const int positions = decoder.limits.max_model_len, half = decoder.config.head_dim / 2;
  std::vector<float> pairs(size_t(positions) * size_t(half) * 2);
  const auto fill = [&](int first, int end) {
    const RopeTable table =
        BuildRopeTable(decoder.config.rope, decoder.config.head_dim, first, end - first);
    float* to = pairs.data() + size_t(first) * size_t(half) * 2;
    for (size_t i = 0; i < table.cos.size(); ++i) {
      to[2 * i] = table.cos[i];
      to[2 * i + 1] = table.sin[i];
    }
  };
  // A thread is worth some thousands of sines.
  const int parts = Max(1, Min(threads, positions / 256));
  std::vector<std::thread> others;
  for (int i = 1; i < parts; ++i) {
    const auto edge = [&](int part) { return int(int64_t{positions} * part / parts); };
    others.emplace_back(fill, edge(i), edge(i + 1));
  }
  fill(0, positions / parts);
  for (std::thread& other : others) other.join();
  return pairs;
}

int64_t KvBlockBytes(const ModelConfig& config, DType storage, int block_size) {
  return int64_t{2} * config.layers * config.kv_heads * config.head_dim * block_size *
         static_cast<int64_t>(DTypeSize(storage));
}

}  // namespace eventide
