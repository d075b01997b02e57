#include "models/decoder.h"

#include <bit>
#include <random>

#include "absl/strings/str_cat.h"
#include "core/status.h"
#include "models/decoder_parts.h"
#include "ops/embedding.h"
#include "ops/final_norm.h"
#include "ops/linear.h"
#include "ops/paged_attention.h"
#include "ops/plan.h"
#include "ops/sample.h"
#include "ops/wide_norm.h"

namespace eventide {
namespace {

static_assert(Linear::kMaxTileRows == kTileRows);

int VariantOf(DType storage) {
  switch (storage) {
    case DType::kBF16:
      return Storage<BF16>::kVariant;
    case DType::kF16:
      return Storage<F16>::kVariant;
    default:
      return Storage<float>::kVariant;
  }
}

class Builder {
 public:
  explicit Builder(Decoder* decoder)
      : d_(*decoder),
        g_(decoder->graph),
        c_(decoder->config),
        shape_(c_),
        variant_(VariantOf(decoder->storage)),
        element_bytes_(static_cast<int>(DTypeSize(decoder->storage))),
        tile_(Linear::TileTokens(element_bytes_)),
        rows_(g_.AddSymbol("rows", 0, d_.limits.max_rows)),
        tokens_(g_.AddSymbol("tokens", 0, d_.limits.max_tokens)),
        token_tiles_(CeilDiv(tokens_, tile_)),
        dim_tokens_(g_.Dim(tokens_)),
        t_(AddDecoderTensors(decoder, rows_, tokens_)),
        outputs_(Min(g_.Load(t_.counts, {int{kCountOutputs}}), Expr(d_.limits.max_outputs))) {}

  void Build() {
    AddEvents();
    g_.BeginSection("begin", 1);
    Begin();
    g_.BeginSection("layers", c_.layers);
    AttentionBlock();
    MlpBlock();
    g_.BeginSection("end", 1);
    End();
    d_.weights = DecoderJobs(d_, t_);
  }

 private:
  void AddEvents() {
    x_ready_ = g_.AddEvents("x_ready", {c_.layers + 1, token_tiles_});
    qkv_done_ = g_.AddEvents("qkv_done", {c_.layers, c_.kv_heads});
    attn_done_ = g_.AddEvents("attn_done", {c_.layers, c_.kv_heads});
    o_done_ = g_.AddEvents("o_done", {c_.layers, token_tiles_});
    if (!c_.IsMoe()) act_done_ = g_.AddEvents("act_done", {c_.layers, token_tiles_});
    xf_ready_ = g_.AddEvents("xf_ready", {CeilDiv(d_.limits.max_outputs, tile_)});
    logits_done_ = g_.AddEvents("logits_done", {1});
  }

  // What a task touches, for Verify.
  IndexRange TileTokens() const {
    return IndexRange(At(0) * tile_, Min(At(0) * tile_ + tile_, tokens_));
  }
  IndexRange TileGroups() const {
    return IndexRange(At(0) * (tile_ / 8),
                      Min(At(0) * (tile_ / 8) + tile_ / 8, CeilDiv(tokens_, 8)));
  }
  Operand Groups(TensorId tensor) const { return Operand(tensor).Region({TileGroups()}); }
  Operand Tokens(TensorId tensor) const { return Operand(tensor).Region({TileTokens()}); }
  // Columns that a row tile writes, `each` per tile, of `all`.
  static IndexRange TileColumns(int each, int64_t all) {
    return IndexRange(Min(At(1) * each, Expr(all)), Min(At(1) * each + each, Expr(all)));
  }
  Operand Nothing() const { return Operand(t_.unused).Region({IndexRange(0, 0)}); }
  Operand PerLayer(int tensor) const { return Operand(TensorId{tensor}, Layer()); }

  // Operands of a linear, all unused but the weight; positions of LinearOperand.
  std::vector<Operand> LinearOperands(const Operand& weight, const Operand& input) const {
    std::vector<Operand> operands(Linear::kInfo.operand_count, Nothing());
    operands[LinearOperand::kWeight] = weight;
    operands[LinearOperand::kInput] = input;
    operands[LinearOperand::kBias] = operands[LinearOperand::kSums] = weight;
    operands[LinearOperand::kCount] = operands[LinearOperand::kGain] = weight;
    operands[LinearOperand::kTiles] = operands[LinearOperand::kSlotToken] = weight;
    return operands;
  }

  // Row tiles of a task: a grid of some 128 tasks keeps a GPU's workers busy, and a task's beginning costs as
  // much as several pages.
  static int Together(int tiles) { return std::max(1, tiles / 128); }

  // `packed_rows`: with the rows that pad the weight to whole tiles.
  LinearParams ParamsOf(LinearParams::Epilogue epilogue, int rows, int packed_rows, int k) const {
    LinearParams params = {};
    params.tile_rows = TileRows(packed_rows);
    params.tiles = Together(packed_rows / params.tile_rows);
    params.tokens = dim_tokens_;
    params.count_index = -1;
    params.rows = rows;
    params.k = k;
    params.epilogue = epilogue;
    params.epsilon = c_.rms_eps;
    return params;
  }

  static int RowsOf(const LinearParams& params) { return params.tiles * params.tile_rows; }
  static int Tasks(const LinearParams& params, int packed_rows) {
    return CeilDiv(packed_rows, RowsOf(params));
  }

  void Begin() {
    const Plan::Params plan = {c_.head_dim,     c_.kv_heads,          shape_.group,
                               Window(),        t_.split.items,       t_.split.partials,
                               t_.split.groups, d_.limits.max_outputs, d_.limits.part_tokens};
    g_.Call<Plan>("plan",
                  {t_.row_start, t_.token_row, t_.row_output, t_.output_token, t_.items, t_.counts},
                  plan, {1}, variant_)
        .Notify(t_.plan_done, {0});
    const Embedding::Params embedding = {
        dim_tokens_, c_.hidden, c_.vocab, c_.tie_embeddings ? TileRows(shape_.vocab_rows) : 0};
    const Expr first = At(0) * Embedding::kTokens;
    const IndexRange tokens(first, Min(first + Embedding::kTokens, tokens_));
    g_.Call<Embedding>(
          "embedding",
          {Operand(t_.table, 0), Operand(t_.norm_a, 0), t_.row_start, t_.token_row,
           Operand(t_.x).Region({tokens, TileColumns(Embedding::kColumns, c_.hidden)}),
           Operand(t_.xa).Region({At(0), TileColumns(Embedding::kColumns * 8, ActivationGroup(c_.hidden))}),
           Operand(t_.ssq_a).Region({tokens, TileColumns(Embedding::kColumns / 16, CeilDiv(c_.hidden, 16))})},
          embedding, {CeilDiv(tokens_, Embedding::kTokens), CeilDiv(c_.hidden, Embedding::kColumns)}, variant_)
        .Wait(t_.plan_done, {0})
        .Notify(x_ready_, {0, At(0) / (tile_ / Embedding::kTokens)});
  }

  void AttentionBlock() {
    LinearParams params =
        ParamsOf(LinearParams::kStore, shape_.qkv_rows, shape_.qkv_rows, c_.hidden);
    // A task's rows are of one KV head.
    while (shape_.qkv_stride % RowsOf(params) != 0) --params.tiles;
    const int tasks_per_head = shape_.qkv_stride / RowsOf(params);
    std::vector<Operand> qkv = LinearOperands(PerLayer(t_.qkv_w.weight), Groups(t_.xa));
    qkv[LinearOperand::kSums] = Tokens(t_.ssq_a);
    qkv[LinearOperand::kOutput] =
        Operand(t_.qkv).Region({TileTokens(), TileColumns(RowsOf(params), shape_.qkv_rows)});
    params.output_stride = shape_.qkv_rows;
    params.norm_size = c_.hidden;
    WithBias(t_.qkv_w, &qkv, &params);
    g_.Call<Linear>("qkv", qkv, params, {token_tiles_, c_.kv_heads * tasks_per_head}, variant_)
        .Wait(x_ready_, {Layer(), At(0)})
        .Notify(qkv_done_, {Layer(), At(1) / tasks_per_head});

    if (c_.wide_qk_norm) NormAllHeads();

    AttentionParams attention = {};
    attention.head_dim = c_.head_dim;
    attention.kv_heads = c_.kv_heads;
    attention.group = shape_.group;
    attention.qkv_stride = shape_.qkv_stride;
    attention.block_size = d_.limits.block_size;
    attention.window = Window();
    attention.scale = 1.0f / SquareRoot(static_cast<float>(c_.head_dim));
    attention.epsilon = c_.rms_eps;
    attention.qk_norm = c_.qk_norm;
    const Expr column = At(1) * shape_.qkv_stride;
    const IndexRange head(column, column + shape_.qkv_stride);
    g_.Call<PagedAttention>(
          "attention",
          {t_.items, t_.row_start, Operand(t_.qkv).Region({IndexRange(0, tokens_), head}),
           Operand(t_.cache, Layer()), Operand(t_.q_norm, Layer()), Operand(t_.k_norm, Layer()),
           Operand(t_.rope, 0), t_.partials, t_.merge, t_.attn},
          attention,
          {g_.Load(t_.counts, {int{kCountItems}}), c_.kv_heads,
           AttentionSplits(c_.head_dim, shape_.group, element_bytes_)},
          variant_)
        .Wait(c_.wide_qk_norm ? normed_ : qkv_done_, {Layer(), At(1)})
        .Notify(attn_done_, {Layer(), At(1)});
  }

  // A hop of its own, since it needs all heads of a token.
  void NormAllHeads() {
    normed_ = g_.AddEvents("qkv_normed", {c_.layers, c_.kv_heads});
    const Expr first = At(0) * WideNorm::kTokens;
    const IndexRange tokens(first, Min(first + WideNorm::kTokens, tokens_));
    g_.Call<WideNorm>("qkv_norm",
                      {Operand(t_.qkv).Region({tokens}), Operand(t_.q_norm, Layer()),
                       Operand(t_.k_norm, Layer())},
                      {dim_tokens_, c_.head_dim, c_.kv_heads, shape_.group, shape_.qkv_stride,
                       shape_.qkv_rows, c_.rms_eps},
                      {CeilDiv(tokens_, WideNorm::kTokens)}, variant_)
        .Wait(qkv_done_, {Layer(), IndexRange(0, c_.kv_heads)})
        .Notify(normed_, {Layer(), IndexRange(0, c_.kv_heads)});
  }

  void MlpBlock() {
    std::vector<Operand> o = LinearOperands(PerLayer(t_.o_w.weight), Groups(t_.attn));
    LinearParams params =
        ParamsOf(LinearParams::kResidual, c_.hidden, shape_.hidden_rows, c_.QueryWidth());
    AddResidual(params, Operand(t_.norm_m, Layer()), t_.xm, t_.ssq_m, &o);
    WithBias(t_.o_w, &o, &params);
    g_.Call<Linear>("o", o, params, {token_tiles_, Tasks(params, shape_.hidden_rows)}, variant_)
        .Wait(attn_done_, {Layer(), IndexRange(0, c_.kv_heads)})
        .Notify(o_done_, {Layer(), At(0)});
    if (c_.IsMoe()) return AddExperts({&g_, &d_, &t_, tokens_, variant_, x_ready_, o_done_});

    std::vector<Operand> gate_up = LinearOperands(PerLayer(t_.gate_up_w.weight), Groups(t_.xm));
    params = ParamsOf(LinearParams::kSiluMul, 2 * c_.intermediate, shape_.mlp_rows, c_.hidden);
    gate_up[LinearOperand::kSums] = Tokens(t_.ssq_m);
    gate_up[LinearOperand::kOutput] = Operand(t_.act).Region(
        {TileGroups(), TileColumns(RowsOf(params) / 2 * 8, ActivationGroup(c_.intermediate))});
    params.output_stride = c_.intermediate;
    params.norm_size = c_.hidden;
    WithBias(t_.gate_up_w, &gate_up, &params);
    g_.Call<Linear>("gate_up", gate_up, params, {token_tiles_, Tasks(params, shape_.mlp_rows)},
                    variant_)
        .Wait(o_done_, {Layer(), At(0)})
        .Notify(act_done_, {Layer(), At(0)});

    std::vector<Operand> down = LinearOperands(PerLayer(t_.down_w.weight), Groups(t_.act));
    params = ParamsOf(LinearParams::kResidual, c_.hidden, shape_.hidden_rows, c_.intermediate);
    AddResidual(params, Operand(t_.norm_a, Layer() + 1), t_.xa, t_.ssq_a, &down);
    WithBias(t_.down_w, &down, &params);
    g_.Call<Linear>("down", down, params, {token_tiles_, Tasks(params, shape_.hidden_rows)},
                    variant_)
        .Wait(act_done_, {Layer(), At(0)})
        .Notify(x_ready_, {Layer() + 1, At(0)});
  }

  void End() {
    g_.Call<FinalNorm>(
          "final_norm",
          {t_.x, t_.ssq_a, Operand(t_.norm_a, c_.layers), t_.output_token, t_.counts,
           Operand(t_.xf).Region({At(0), TileColumns(FinalNorm::kColumns * 8, ActivationGroup(c_.hidden))})},
          FinalNorm::Params{c_.hidden, c_.rms_eps},
          {CeilDiv(outputs_, FinalNorm::kTokens), CeilDiv(c_.hidden, FinalNorm::kColumns)}, variant_)
        .Wait(x_ready_, {c_.layers, IndexRange(0, token_tiles_)})
        .Notify(xf_ready_, {At(0) / (tile_ / FinalNorm::kTokens)});

    const Expr first = At(0) * (tile_ / 8);
    const IndexRange groups(first, Min(first + tile_ / 8, CeilDiv(outputs_, 8)));
    std::vector<Operand> head =
        LinearOperands(Operand(TensorId{t_.head_w.weight}, 0), Operand(t_.xf).Region({groups}));
    head[LinearOperand::kCount] = t_.counts;
    head[LinearOperand::kOutput] = t_.logits;
    head[LinearOperand::kBest] = t_.best;
    LinearParams params =
        ParamsOf(LinearParams::kLogits, c_.vocab, shape_.vocab_rows, c_.hidden);
    params.count_index = kCountOutputs;
    params.output_stride = d_.logits_stride;
    g_.Call<Linear>("head", head, params,
                    {CeilDiv(outputs_, tile_), Tasks(params, shape_.vocab_rows)}, variant_)
        .Wait(xf_ready_, {At(0)})
        .Notify(logits_done_, {0});
    g_.Call<Sample>("sample",
                    {t_.row_start, t_.token_row, t_.row_output, t_.output_token, t_.counts,
                     t_.logits, t_.best, t_.drawn, t_.arrived},
                    Sample::Params{c_.vocab, d_.logits_stride}, {outputs_ + rows_}, variant_)
        .Wait(logits_done_, {0});
  }

  void WithBias(const LinearTensors& tensors, std::vector<Operand>* operands,
                LinearParams* params) const {
    params->has_bias = tensors.bias >= 0;
    if (params->has_bias) (*operands)[LinearOperand::kBias] = PerLayer(tensors.bias);
  }

  void AddResidual(const LinearParams& params, const Operand& gain, TensorId next, TensorId sums,
                   std::vector<Operand>* operands) const {
    const int rows = RowsOf(params);
    (*operands)[LinearOperand::kGain] = gain;
    (*operands)[LinearOperand::kResidual] =
        Operand(t_.x).Region({TileTokens(), TileColumns(rows, c_.hidden)});
    (*operands)[LinearOperand::kNext] = Operand(next).Region(
        {TileGroups(), TileColumns(rows * 8, ActivationGroup(c_.hidden))});
    (*operands)[LinearOperand::kNextSums] =
        Operand(sums).Region({TileTokens(), TileColumns(rows / 16, CeilDiv(c_.hidden, 16))});
  }

  // One window for all layers (CheckSupported); one that nothing falls out of is none.
  int Window() const {
    const int window = c_.Window(0);
    return window >= d_.limits.max_model_len ? 0 : window;
  }

  Decoder& d_;
  Graph& g_;
  const ModelConfig& c_;
  const DecoderShape shape_;
  const int variant_, element_bytes_;
  const int tile_;  // tokens of a linear's task
  const Expr rows_, tokens_, token_tiles_;
  const DimRef dim_tokens_;
  const DecoderTensors t_;
  const Expr outputs_;
  EventId x_ready_, qkv_done_, normed_, attn_done_, o_done_, act_done_, xf_ready_, logits_done_;
};

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

}  // namespace

absl::Status CheckDecoderLimits(const ModelConfig& c, const DecoderLimits& l) {
  const auto check = [](const char* name, int64_t value, int64_t low, int64_t high) {
    if (value >= low && value <= high) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is ", value, "; it must be from ", low, " to ", high));
  };
  RETURN_IF_ERROR(
      check("the number of sequences in a step (max-num-seqs)", l.max_rows, 1, Plan::kMaxRows));
  RETURN_IF_ERROR(
      check("the number of tokens in a step (max-num-batched-tokens)", l.max_tokens, 1, 1 << 20));
  RETURN_IF_ERROR(check("the number of outputs of a step", l.max_outputs, l.max_rows, 1 << 20));
  RETURN_IF_ERROR(
      check("the longest sequence (max-model-len)", l.max_model_len, 1, c.max_positions));
  RETURN_IF_ERROR(check("the block size (block-size)", l.block_size, 1, 1024));
  if (!std::has_single_bit(static_cast<unsigned>(l.block_size))) {
    return absl::InvalidArgumentError(absl::StrCat("the block size (block-size) is ", l.block_size,
                                                   "; it must be a power of two"));
  }
  return check("the number of KV blocks (num-blocks)", l.num_blocks, 1, INT32_MAX);
}

absl::StatusOr<Decoder> BuildDecoder(const ModelConfig& config, DType storage,
                                     const DecoderLimits& limits) {
  RETURN_IF_ERROR(ValidateConfig(config));
  RETURN_IF_ERROR(CheckSupported(config, limits));
  RETURN_IF_ERROR(CheckDecoderLimits(config, limits));
  EVT_CHECK(IsWeightDType(storage));
  Decoder decoder;
  decoder.config = config;
  decoder.storage = storage;
  decoder.limits = limits;
  Builder(&decoder).Build();
  if (!decoder.graph.mistakes().empty()) return decoder.graph.mistakes().front();
  return decoder;
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
    return [=](int tensor, int64_t element) -> int64_t {
      if (tensor != counts) return experts(tensor, element);
      if (element == kCountItems) return items;
      if (element == kCountOutputs) return outputs;
      return element == kCountTokens ? tokens : 0;
    };
  };
  return options;
}

}  // namespace eventide
