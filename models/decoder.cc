#include "models/decoder.h"

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
        team_(Team()),
        tile_(Linear::TileTokens(element_bytes_) * team_),
        head_tile_(Linear::TileTokens(element_bytes_)),
        rows_(g_.AddSymbol("rows", 0, d_.limits.max_rows)),
        tokens_(g_.AddSymbol("tokens", 0, d_.limits.max_tokens)),
        token_tiles_(CeilDiv(tokens_, tile_)),
        appends_(AppendsOf(d_, rows_, tokens_)),
        dim_tokens_(g_.Dim(tokens_)),
        t_(AddDecoderTensors(decoder, rows_, tokens_)),
        stay_(d_.HasExits()
                  ? g_.Load(t_.exits.counts, {Layer(), int{kExitStay}})
                  : tokens_),
        stay_tiles_(CeilDiv(stay_, tile_)),
        outputs_(Min(g_.Load(t_.counts, {int{kCountOutputs}}), Expr(d_.limits.max_outputs))) {}

  void Build() {
    AddEvents();
    g_.BeginSection("begin", 1);
    Begin();
    g_.BeginSection("layers", c_.layers);
    AttentionBlock();
    MlpBlock();
    if (d_.HasExits()) AddExitPoint(Exits());
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
    xf_ready_ = g_.AddEvents("xf_ready", {CeilDiv(d_.limits.max_outputs, head_tile_)});
    logits_done_ = g_.AddEvents("logits_done", {1});
    if (!d_.HasExits()) return;
    embedded_ = g_.AddEvents("embedded", {token_tiles_});
    mlp_done_ = g_.AddEvents("mlp_done", {c_.layers, token_tiles_});
  }
  ExitsPlace Exits() {
    return {&g_, &d_, &t_, tokens_, variant_, embedded_, x_ready_, mlp_done_, attn_done_};
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

  // Row tiles of a task: a grid of at most some 130 tasks keeps a GPU's workers busy, and a second task for some of
  // them costs as much as several pages.
  static int Together(int tiles) { return CeilDiv(tiles, 132); }

  // `packed_rows`: with the rows that pad the weight to whole tiles.
  LinearParams ParamsOf(LinearParams::Epilogue epilogue, int rows, int packed_rows, int k) const {
    LinearParams params = {};
    params.tile_rows = TileRows(packed_rows);
    params.tiles = Together(packed_rows / params.tile_rows);
    params.team = team_;
    params.tokens = dim_tokens_;
    params.count_index = -1;
    params.rows = rows;
    params.k = k;
    params.epilogue = epilogue;
    params.epsilon = c_.rms_eps;
    return params;
  }

  // How many tasks of every linear of a layer may work together: its tile of tokens, which events count, is the same in
  // all. A team is of one KV head, and never larger than what is left.
  int Team() const {
    constexpr int kTeam = 4;
    if (c_.IsMoe() || d_.HasExits()) return 1;
    const int qkv_rows = QkvTiles() * TileRows(shape_.qkv_rows);
    if (shape_.qkv_stride / qkv_rows % kTeam != 0) return 1;
    for (const int packed_rows : {shape_.hidden_rows, shape_.mlp_rows}) {
      const int row_tiles = packed_rows / TileRows(packed_rows);
      if (CeilDiv(row_tiles, Together(row_tiles)) % kTeam != 0) return 1;
    }
    return kTeam;
  }
  // A task's rows are of one KV head.
  int QkvTiles() const {
    const int rows = TileRows(shape_.qkv_rows);
    int tiles = Together(shape_.qkv_rows / rows);
    while (shape_.qkv_stride % (tiles * rows) != 0) --tiles;
    return tiles;
  }

  static int RowsOf(const LinearParams& params) { return params.tiles * params.tile_rows; }
  static int Tasks(const LinearParams& params, int packed_rows) {
    return CeilDiv(packed_rows, RowsOf(params));
  }

  // A layer's linear has the tokens that are left.
  void TakeStay(std::vector<Operand>* operands, LinearParams* params) const {
    if (!d_.HasExits()) return;
    (*operands)[LinearOperand::kCount] = Operand(t_.exits.counts, Layer());
    params->count_index = kExitStay;
  }

  void Begin() {
    const Plan::Params plan = {
        c_.head_dim, c_.kv_heads, shape_.group, Window(), t_.split.items, t_.split.partials, t_.split.groups,
        d_.limits.max_outputs, d_.limits.part_tokens, d_.limits.long_tokens, g_.Dim(appends_)};
    g_.Call<Plan>("plan",
                  {t_.row_start, t_.token_row, t_.row_output, t_.output_token, t_.items, t_.counts},
                  plan, {1}, variant_)
        .Notify(t_.plan_done, {0});
    const Embedding::Params embedding = {
        dim_tokens_, c_.hidden, c_.vocab, c_.tie_embeddings ? TileRows(shape_.vocab_rows) : 0};
    const Expr first = At(0) * Embedding::kTokens;
    const IndexRange tokens(first, Min(first + Embedding::kTokens, tokens_));
    GridHandle embed = g_.Call<Embedding>(
          "embedding",
          {Operand(t_.table, 0), Operand(t_.norm_a, 0), t_.row_start, t_.token_row,
           Operand(t_.x).Region({tokens, TileColumns(Embedding::kColumns, c_.hidden)}),
           Operand(t_.xa).Region({At(0), TileColumns(Embedding::kColumns * 8, ActivationGroup(c_.hidden))}),
           Operand(t_.ssq_a).Region({tokens, TileColumns(Embedding::kColumns / 16, CeilDiv(c_.hidden, 16))})},
          embedding, {CeilDiv(tokens_, Embedding::kTokens), CeilDiv(c_.hidden, Embedding::kColumns)}, variant_);
    embed.Wait(t_.plan_done, {0});
    const Expr tile = At(0) / (tile_ / Embedding::kTokens);
    if (d_.HasExits()) {
      embed.Notify(embedded_, {tile});
      AddExitBegin(Exits());
    } else {
      embed.Notify(x_ready_, {0, tile});
    }
  }

  void AttentionBlock() {
    LinearParams params =
        ParamsOf(LinearParams::kStore, shape_.qkv_rows, shape_.qkv_rows, c_.hidden);
    params.tiles = QkvTiles();
    const int tasks_per_head = shape_.qkv_stride / RowsOf(params);
    std::vector<Operand> qkv = LinearOperands(PerLayer(t_.qkv_w.weight), Groups(t_.xa));
    qkv[LinearOperand::kSums] = Tokens(t_.ssq_a);
    qkv[LinearOperand::kOutput] =
        Operand(t_.qkv).Region({TileTokens(), TileColumns(RowsOf(params), shape_.qkv_rows)});
    params.output_stride = shape_.qkv_rows;
    params.norm_size = c_.hidden;
    WithBias(t_.qkv_w, &qkv, &params);
    TakeStay(&qkv, &params);
    GridHandle first = g_.Call<Linear>("qkv", qkv, params,
                                       {stay_tiles_, c_.kv_heads * tasks_per_head}, variant_);
    first.Wait(x_ready_, {Layer(), At(0)}).Notify(qkv_done_, {Layer(), At(1) / tasks_per_head});
    if (d_.HasExits()) {
      // Only where there is something to wait for: mostly, a layer follows the one before at once.
      const Expr settles = g_.Load(t_.exits.counts, {Layer(), int{kExitSettles}});
      first.Wait(t_.exits.settled, {Layer(), IndexRange(0, settles)});
    }

    if (c_.wide_qk_norm) NormAllHeads();
    const EventId ready = c_.wide_qk_norm ? normed_ : qkv_done_;
    if (!d_.HasExits()) appended_ = AddAppends({&g_, &d_, &t_, tokens_, appends_, variant_, ready});

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
    GridHandle attend = g_.Call<PagedAttention>(
          "attention",
          {t_.items, d_.HasExits() ? t_.exits.row_place : t_.row_start,
           Operand(t_.qkv).Region({IndexRange(0, tokens_), head}),
           Operand(t_.cache, Layer()), Operand(t_.q_norm, Layer()), Operand(t_.k_norm, Layer()),
           Operand(t_.rope, 0), t_.partials, t_.merge, t_.attn, t_.items, t_.items},
          attention,
          {Items(), c_.kv_heads, AttentionSplits(c_.head_dim, shape_.group, element_bytes_)},
          variant_);
    attend.Wait(ready, {Layer(), At(1)}).Notify(attn_done_, {Layer(), At(1)});
    if (d_.HasExits()) return AddExitKeysAndValues(Exits());
    // Mostly there is nothing to wait for. All heads, since Verify knows no heads of the cache.
    attend.Wait(appended_, {Layer(), IndexRange(0, HasAppends(d_, rows_, tokens_) * c_.kv_heads)});
  }

  Expr Items() const {
    if (!d_.HasExits()) return g_.Load(t_.counts, {int{kCountItems}});
    return g_.Load(t_.exits.counts, {Layer(), int{kExitItems}});
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
    TakeStay(&o, &params);
    g_.Call<Linear>("o", o, params, {stay_tiles_, Tasks(params, shape_.hidden_rows)}, variant_)
        .Wait(attn_done_, {Layer(), IndexRange(0, c_.kv_heads)})
        .Notify(o_done_, {Layer(), At(0)});
    if (c_.IsMoe()) return AddExperts({&g_, &d_, &t_, tokens_, variant_, x_ready_, o_done_, mlp_done_});

    std::vector<Operand> gate_up = LinearOperands(PerLayer(t_.gate_up_w.weight), Groups(t_.xm));
    params = ParamsOf(LinearParams::kSiluMul, 2 * c_.intermediate, shape_.mlp_rows, c_.hidden);
    gate_up[LinearOperand::kSums] = Tokens(t_.ssq_m);
    gate_up[LinearOperand::kOutput] = Operand(t_.act).Region(
        {TileGroups(), TileColumns(RowsOf(params) / 2 * 8, ActivationGroup(c_.intermediate))});
    params.output_stride = c_.intermediate;
    params.norm_size = c_.hidden;
    WithBias(t_.gate_up_w, &gate_up, &params);
    TakeStay(&gate_up, &params);
    g_.Call<Linear>("gate_up", gate_up, params, {stay_tiles_, Tasks(params, shape_.mlp_rows)},
                    variant_)
        .Wait(o_done_, {Layer(), At(0)})
        .Notify(act_done_, {Layer(), At(0)});

    std::vector<Operand> down = LinearOperands(PerLayer(t_.down_w.weight), Groups(t_.act));
    params = ParamsOf(LinearParams::kResidual, c_.hidden, shape_.hidden_rows, c_.intermediate);
    AddResidual(params, Operand(t_.norm_a, Layer() + 1), t_.xa, t_.ssq_a, &down);
    WithBias(t_.down_w, &down, &params);
    TakeStay(&down, &params);
    GridHandle last = g_.Call<Linear>("down", down, params,
                                      {stay_tiles_, Tasks(params, shape_.hidden_rows)}, variant_);
    last.Wait(act_done_, {Layer(), At(0)}).Notify(x_ready_, {Layer() + 1, At(0)});
    if (d_.HasExits()) last.Notify(mlp_done_, {Layer(), At(0)});
  }

  void End() {
    const bool exits = d_.HasExits();
    GridHandle norm = g_.Call<FinalNorm>(
          "final_norm",
          {t_.x, t_.ssq_a, Operand(t_.norm_a, c_.layers),
           exits ? t_.exits.output_place : t_.output_token, t_.counts,
           Operand(t_.xf).Region({At(0), TileColumns(FinalNorm::kColumns * 8, ActivationGroup(c_.hidden))})},
          FinalNorm::Params{c_.hidden, c_.rms_eps},
          {CeilDiv(outputs_, FinalNorm::kTokens), CeilDiv(c_.hidden, FinalNorm::kColumns)}, variant_);
    norm.Notify(xf_ready_, {At(0) / (head_tile_ / FinalNorm::kTokens)});
    if (exits) {
      // Of those who left at the last point, and, whether it has tasks or not, behind the last layer.
      norm.Wait(t_.exits.settled, {IndexRange(t_.exits.points.last, c_.layers + 1), 0});
    } else {
      norm.Wait(x_ready_, {c_.layers, IndexRange(0, token_tiles_)});
    }

    const Expr first = At(0) * (head_tile_ / 8);
    const IndexRange groups(first, Min(first + head_tile_ / 8, CeilDiv(outputs_, 8)));
    std::vector<Operand> head =
        LinearOperands(Operand(TensorId{t_.head_w.weight}, 0), Operand(t_.xf).Region({groups}));
    head[LinearOperand::kCount] = t_.counts;
    head[LinearOperand::kOutput] = t_.logits;
    head[LinearOperand::kBest] = t_.best;
    LinearParams params =
        ParamsOf(LinearParams::kLogits, c_.vocab, shape_.vocab_rows, c_.hidden);
    params.count_index = kCountOutputs;
    params.team = 1;
    params.output_stride = d_.logits_stride;
    g_.Call<Linear>("head", head, params,
                    {CeilDiv(outputs_, head_tile_), Tasks(params, shape_.vocab_rows)}, variant_)
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
  const int team_;  // LinearParams
  const int tile_, head_tile_;  // tokens of a tile of a linear, of the head
  const Expr rows_, tokens_, token_tiles_, appends_;  // appends: tasks of append_kv for each KV head
  const DimRef dim_tokens_;
  const DecoderTensors t_;
  const Expr stay_, stay_tiles_;  // tokens that a layer computes
  const Expr outputs_;
  EventId embedded_, mlp_done_;  // of early exit only
  EventId x_ready_, qkv_done_, normed_, appended_, attn_done_, o_done_, act_done_, xf_ready_, logits_done_;
};

}  // namespace

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

}  // namespace eventide
