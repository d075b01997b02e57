// A layer of experts as a graph fragment:
//
//   o -> router -> [choose ->] route -> gate_up -> down -> combine -> the next layer's qkv
//         \\-> shared gate_up -> shared down ------------/
//
// `choose` has tasks only in steps of more than 8 tokens. The expert grids' extents are what `route` published:
// an expert without tokens has no tasks, and the host learns no count.
#include "models/decoder_parts.h"
#include "ops/combine.h"
#include "ops/linear.h"
#include "ops/route.h"

namespace eventide {
namespace {

constexpr int kChunk = Combine::kColumns;  // columns of the residual that are combined at once

class Builder {
 public:
  explicit Builder(const ExpertsPlace& place)
      : place_(place),
        g_(*place.graph),
        c_(place.decoder->config),
        t_(*place.tensors),
        e_(place.tensors->experts),
        shape_(c_),
        exits_(place.decoder->HasExits()),
        tokens_(place.tokens),
        stay_(exits_ ? g_.Load(t_.exits.counts, {Layer(), int{kExitStay}}) : tokens_),
        slots_(SlotsOf(c_, stay_)),
        tile_(Linear::TileTokens(static_cast<i32>(DTypeSize(place.decoder->storage)))),
        token_tiles_(CeilDiv(tokens_, tile_)),
        stay_tiles_(CeilDiv(stay_, tile_)),
        tiles_(g_.Load(e_.tile_count, {Layer()}) * Min(stay_, 1)),
        up_tiles_(shape_.expert_rows / kTileRows),
        down_tiles_(shape_.hidden_rows / kTileRows) {}

  void Build() {
    Router();
    if (shape_.dense_width > 0) SharedExpert();
    Routes();
    Experts();
    Combined();
  }

 private:
  Operand Nothing() const { return Operand(t_.unused).Region({IndexRange(0, 0)}); }
  Operand PerLayer(int tensor) const { return Operand(TensorId{tensor}, Layer()); }
  // What says how many tokens the layer has, where it is not all of the step.
  Operand Count() const { return exits_ ? Operand(t_.exits.counts, Layer()) : Nothing(); }
  int CountIndex() const { return exits_ ? int{kExitStay} : -1; }
  IndexRange TileTokens() const {
    return IndexRange(At(0) * tile_, Min(At(0) * tile_ + tile_, stay_));
  }
  Operand Groups(TensorId tensor) const {
    const int each = tile_ / 8;
    return Operand(tensor).Region(
        {IndexRange(At(0) * each, Min(At(0) * each + each, CeilDiv(stay_, 8)))});
  }
  // Columns of `all` that a row tile writes, `each` per tile.
  static IndexRange TileColumns(int each, int64_t all) {
    return IndexRange(Min(At(1) * each, Expr(all)), Min(At(1) * each + each, Expr(all)));
  }
  // Groups of 8 slots of the task's tile.
  IndexRange TileSlotGroups() const {
    return IndexRange(g_.Load(e_.tiles, {Layer(), At(0), 1}),
                      g_.Load(e_.tiles, {Layer(), At(0) + 1, 1}));
  }

  // Tasks of a tile of slots, as `route` finds it best.
  Expr Tasks(ExpertLinear linear) const { return g_.Load(e_.splits, {Layer(), int{linear}}); }

  struct Call {
    std::vector<Operand> operands;
    LinearParams params = {};
  };
  Call LinearCall(LinearParams::Epilogue epilogue, int weight, int rows, int k,
                  int tile_rows) const {
    Call call;
    call.operands.assign(Linear::kInfo.operand_count, Nothing());
    for (int i = 0; i < Linear::kInfo.operand_count; ++i) {
      if (Linear::kInfo.operands[i].mode == kRead) call.operands[i] = PerLayer(weight);
    }
    call.params.tokens = g_.Dim(tokens_);
    call.params.count_index = CountIndex();
    if (exits_) call.operands[LinearOperand::kCount] = Count();
    call.params.epilogue = epilogue;
    call.params.tile_rows = tile_rows;
    call.params.tiles = 1;
    call.params.rows = rows;
    call.params.k = k;
    call.params.epsilon = c_.rms_eps;
    return call;
  }
  // The input is the residual after attention, times its norm.
  void TakeNorm(Call* call) const {
    call->operands[LinearOperand::kInput] = Groups(t_.xm);
    call->operands[LinearOperand::kSums] = Operand(t_.ssq_m).Region({TileTokens()});
    call->params.norm_size = c_.hidden;
  }

  // With up to a tile of tokens, a task has 8 of them: its rows are few, and what waits for it is one chain.
  void Router() {
    // Not where only the device knows how many tokens there are: events are found by coordinates.
    const Expr each = exits_ ? Expr(tile_) : tile_ - (tile_ - 8) * Min(Max(tile_ + 1 - stay_, 0), 1);
    const Expr token_tile = FloorDiv(At(0) * each, tile_);
    const IndexRange tokens(At(0) * each, Min(At(0) * each + each, stay_));
    const int rows = TileRows(RoundUp(shape_.router_rows, kTileRows));
    const int row_tiles = CeilDiv(shape_.router_rows, rows);
    router_done_ = g_.AddEvents("router_done", {c_.layers, token_tiles_});
    Call call = LinearCall(LinearParams::kStore, e_.router_w.weight, shape_.router_rows, c_.hidden,
                           rows);
    TakeNorm(&call);
    call.operands[LinearOperand::kInput] = Operand(t_.xm).Region(
        {IndexRange(FloorDiv(At(0) * each, 8), Min(FloorDiv(At(0) * each + each, 8), CeilDiv(stay_, 8)))});
    call.operands[LinearOperand::kSums] = Operand(t_.ssq_m).Region({tokens});
    call.operands[LinearOperand::kOutput] =
        Operand(e_.logits).Region({tokens, TileColumns(rows, shape_.router_rows)});
    call.params.output_stride = shape_.router_rows;
    call.params.eights = !exits_;
    g_.Call<Linear>("router", call.operands, call.params, {CeilDiv(stay_, each), row_tiles}, place_.variant)
        .Wait(place_.o_done, {Layer(), token_tile})
        .Notify(router_done_, {Layer(), token_tile});
  }

  // Beside the routing: its tasks fill the time in which nobody knows which experts to read.
  void SharedExpert() {
    const int width = shape_.dense_width;
    const int up_rows = TileRows(shape_.mlp_rows), down_rows = TileRows(shape_.hidden_rows);
    const EventId act_done = g_.AddEvents("shared_act_done", {c_.layers, token_tiles_});
    shared_done_ = g_.AddEvents("shared_done", {c_.layers, token_tiles_});
    Call call = LinearCall(LinearParams::kSiluMul, t_.gate_up_w.weight, 2 * width, c_.hidden, up_rows);
    TakeNorm(&call);
    call.operands[LinearOperand::kOutput] = Groups(t_.act);
    call.operands[LinearOperand::kOutput].region.push_back(
        TileColumns(up_rows / 2 * 8, ActivationGroup(width)));
    call.params.output_stride = width;
    g_.Call<Linear>("shared_gate_up", call.operands, call.params,
                    {stay_tiles_, shape_.mlp_rows / up_rows}, place_.variant)
        .Wait(place_.o_done, {Layer(), At(0)})
        .Notify(act_done, {Layer(), At(0)});
    call = LinearCall(LinearParams::kStore, t_.down_w.weight, c_.hidden, width, down_rows);
    call.operands[LinearOperand::kInput] = Groups(t_.act);
    call.operands[LinearOperand::kOutput] =
        Operand(e_.shared).Region({TileTokens(), TileColumns(down_rows, c_.hidden)});
    call.params.output_stride = c_.hidden;
    g_.Call<Linear>("shared_down", call.operands, call.params, {stay_tiles_, shape_.hidden_rows / down_rows},
                    place_.variant)
        .Wait(act_done, {Layer(), At(0)})
        .Notify(shared_done_, {Layer(), At(0)});
  }

  void Routes() {
    const Expr groups = CeilDiv(stay_, Route::kTokens);
    // None in steps that `route` chooses for by itself.
    const Expr choosing = groups * Min(stay_ / (Route::kTokens + 1), 1);
    const Expr alone = stay_ - stay_ * Min(stay_ / (Route::kTokens + 1), 1);
    const EventId chosen = g_.AddEvents("chosen", {c_.layers, CeilDiv(tokens_, Route::kTokens)});
    Route::Params params = {};
    params.tokens = g_.Dim(tokens_);
    params.count_index = CountIndex();
    params.experts = c_.num_experts;
    params.top_k = c_.experts_per_token;
    params.logits_stride = shape_.router_rows;
    params.draws = place_.decoder->limits.route_draws;
    params.normalise = c_.norm_topk_prob;
    params.scale = 1.0f;
    params.row_tiles[kExpertUp] = up_tiles_;
    params.row_tiles[kExpertDown] = down_tiles_;
    const IndexRange mine(At(0) * Route::kTokens,
                          Min(At(0) * Route::kTokens + Route::kTokens, stay_));
    std::vector<Operand> operands(Route::kInfo.operand_count, Nothing());
    operands[Route::kLogits] = Operand(e_.logits).Region({mine});
    operands[Route::kDrawn] = Operand(e_.drawn, Layer());
    operands[Route::kCount] = Count();
    operands[Route::kPairs] = Operand(e_.pairs, Layer()).Region({mine});
    operands[Route::kCounts] = Operand(e_.counts).Region({At(0)});
    g_.Call<Route>("choose", operands, params, {choosing}, place_.variant)
        .Wait(router_done_, {Layer(), At(0) / (tile_ / Route::kTokens)})
        .Notify(chosen, {Layer(), At(0)});

    // Has its task in a layer that nobody reaches, too, and then waits for what a gate passes on.
    const Expr routed_tiles = exits_ ? Min(Max(stay_tiles_, 1), token_tiles_) : token_tiles_;
    params.groups = 1;
    operands[Route::kLogits] = Operand(e_.logits).Region({IndexRange(0, alone)});
    operands[Route::kPairs] = Operand(e_.pairs, Layer()).Region({IndexRange(0, alone)});
    operands[Route::kCounts] =
        Operand(e_.counts).Region({IndexRange(0, CeilDiv(alone, Route::kTokens))});
    operands[Route::kAllPairs] = Operand(e_.pairs, Layer()).Region({IndexRange(0, stay_ - alone)});
    operands[Route::kAllCounts] = Operand(e_.counts).Region({IndexRange(0, choosing)});
    operands[Route::kBases] = Operand(e_.bases).Region({IndexRange(0, groups)});
    operands[Route::kPairSlot] = Operand(e_.pair_slot).Region({IndexRange(0, stay_)});
    operands[Route::kSlotToken] = Operand(e_.slot_token).Region({IndexRange(0, slots_)});
    operands[Route::kTiles] = Operand(e_.tiles, Layer());
    operands[Route::kTileCount] = Operand(e_.tile_count, Layer());
    operands[Route::kSplits] = Operand(e_.splits, Layer());
    g_.Call<Route>("route", operands, params, {1}, place_.variant)
        .Wait(router_done_, {Layer(), IndexRange(0, routed_tiles)})
        .Wait(chosen, {Layer(), IndexRange(0, choosing)})
        .Notify(e_.routed, {Layer()});
  }

  void Experts() {
    // Of all tiles at once where grids have gates, which look at every element.
    const Expr tile = exits_ ? Expr(0) : At(0);
    act_done_ = g_.AddEvents("expert_act_done", {c_.layers, exits_ ? 1 : e_.max_tiles});
    down_done_ = g_.AddEvents("expert_down_done", {c_.layers});
    const int width = c_.moe_intermediate;
    Call call = LinearCall(LinearParams::kSiluMul, e_.gate_up_w.weight, 2 * width, c_.hidden, kTileRows);
    TakeNorm(&call);
    // Any token may be in any tile.
    call.operands[LinearOperand::kInput] =
        Operand(t_.xm).Region({IndexRange(0, CeilDiv(stay_, 8))});
    call.operands[LinearOperand::kSums] = Operand(t_.ssq_m).Region({IndexRange(0, stay_)});
    call.operands[LinearOperand::kOutput] = Operand(e_.act).Region({TileSlotGroups()});
    call.params.output_stride = width;
    call.params.gathers = kExpertUp;
    AddTables(up_tiles_, &call);
    // What it reads has been waited for with its extent, which `route` published.
    g_.Call<Linear>("gate_up", call.operands, call.params,
                    {tiles_, Tasks(kExpertUp)}, place_.variant)
        .Notify(act_done_, {Layer(), tile});

    call = LinearCall(LinearParams::kStore, e_.down_w.weight, c_.hidden, width, kTileRows);
    call.operands[LinearOperand::kInput] = Operand(e_.act).Region({TileSlotGroups()});
    const IndexRange slots = TileSlotGroups();
    call.operands[LinearOperand::kOutput] =
        Operand(e_.outputs).Region({IndexRange(slots.low * 8, slots.high * 8)});
    call.params.output_stride = c_.hidden;
    AddTables(down_tiles_, &call);
    g_.Call<Linear>("down", call.operands, call.params, {tiles_, Tasks(kExpertDown)}, place_.variant)
        .Wait(act_done_, {Layer(), tile})
        .Notify(down_done_, {Layer()});
  }

  void AddTables(int row_tiles, Call* call) const {
    call->params.expert_tiles = row_tiles;
    call->operands[LinearOperand::kTiles] = Operand(e_.tiles, Layer());
    call->operands[LinearOperand::kSlotToken] =
        Operand(e_.slot_token).Region({IndexRange(0, slots_)});
  }

  void Combined() {
    const Expr first = At(0) * Combine::kTokens;
    const IndexRange tokens(first, Min(first + Combine::kTokens, stay_));
    const auto columns = [&](int each, int64_t all) { return TileColumns(each, all); };
    const auto mine = [&](TensorId tensor) { return Operand(tensor).Region({tokens}); };
    Combine::Params params = {};
    params.tokens = g_.Dim(tokens_);
    params.count_index = CountIndex();
    params.hidden = c_.hidden;
    params.top_k = c_.experts_per_token;
    params.shared_gate = shape_.dense_width > 0 ? c_.num_experts : -1;
    params.logits_stride = shape_.router_rows;
    const bool shared = shape_.dense_width > 0;
    GridHandle combine = g_.Call<Combine>(
        "combine",
        {Operand(e_.outputs).Region({IndexRange(0, slots_)}),
         Operand(e_.pairs, Layer()).Region({tokens}), mine(e_.pair_slot),
         shared ? Operand(e_.shared).Region({tokens, columns(kChunk, c_.hidden)})
                : mine(e_.pair_slot),
         mine(e_.logits), Operand(t_.norm_a, Layer() + 1),
         Operand(t_.x).Region({tokens, columns(kChunk, c_.hidden)}),
         Operand(t_.xa).Region({At(0) / (8 / Combine::kTokens),
                                columns(kChunk * 8, ActivationGroup(c_.hidden))}),
         Operand(t_.ssq_a).Region({tokens, columns(kChunk / 16, CeilDiv(c_.hidden, 16))}),
         Count()},
        params, {CeilDiv(stay_, Combine::kTokens), CeilDiv(c_.hidden, kChunk)}, place_.variant);
    combine.Wait(down_done_, {Layer()});
    if (shared) combine.Wait(shared_done_, {Layer(), At(0) / (tile_ / Combine::kTokens)});
    combine.Notify(place_.x_ready, {Layer() + 1, At(0) / (tile_ / Combine::kTokens)});
    if (exits_) combine.Notify(place_.mlp_done, {Layer(), At(0) / (tile_ / Combine::kTokens)});
  }

  const ExpertsPlace& place_;
  Graph& g_;
  const ModelConfig& c_;
  const DecoderTensors& t_;
  const ExpertTensors& e_;
  const DecoderShape shape_;
  const bool exits_;
  const Expr tokens_;
  const Expr stay_, slots_;  // tokens that the layer computes; the most slots that they fill
  const int tile_;           // tokens of a dense linear's task
  const Expr token_tiles_, stay_tiles_, tiles_;
  const int up_tiles_, down_tiles_;  // row tiles of one expert
  EventId router_done_, shared_done_, act_done_, down_done_;
};

}  // namespace

Expr SlotsOf(const ModelConfig& c, const Expr& tokens) {
  const Expr pairs = tokens * c.experts_per_token;
  return pairs + 7 * Min(pairs, c.num_experts);
}

void AddExperts(const ExpertsPlace& place) {
  Builder(place).Build();
}

PublishedValues SampleExperts(const Decoder& decoder, int64_t tokens, uint64_t seed) {
  const ModelConfig& c = decoder.config;
  if (!c.IsMoe()) return [](int, int64_t) { return int64_t{0}; };
  constexpr int64_t kFields = sizeof(ExpertTile) / 4, kFewTiles = 5;
  const int64_t experts = c.num_experts, top_k = c.experts_per_token;
  const int64_t line = (MostTiles(decoder.limits.max_tokens * top_k, experts) + 1) * kFields;
  const int tiles = decoder.tiles.index, tile_count = decoder.tile_count.index;
  const int splits = decoder.splits.index;
  // Of early exit: layers have the tokens that are left.
  const PublishedValues exits = SampleExits(decoder, tokens, seed);
  const int exit_counts = decoder.HasExits() ? decoder.exit_counts.index : -1;
  const auto stay = [=](int64_t layer) {
    return exit_counts < 0 ? tokens : exits(exit_counts, layer * kExitCounts + kExitStay);
  };
  // Tiles of one to four groups, one behind the other.
  const auto mix = [seed](int64_t layer, int64_t salt) {
    return static_cast<int64_t>((seed * 31 + static_cast<uint64_t>(layer) * 17 +
                                 static_cast<uint64_t>(salt)) * 0x9e3779b97f4a7c15u >> 33);
  };
  return [=](int tensor, int64_t element) -> int64_t {
    const auto count = [&](int64_t layer) -> int64_t {
      const int64_t most = Min<int64_t>(MostTiles(stay(layer) * top_k, experts), kFewTiles);
      return most < 1 ? 1 : 1 + mix(layer, 0) % most;
    };
    if (tensor == tile_count) return count(element);
    if (tensor == splits) return 1 + mix(element / kExpertLinears, 1000 + element) % 3;
    if (tensor != tiles) return 0;
    const int64_t layer = element / line, tile = element % line / kFields;
    const int64_t groups = MostSlots(stay(layer) * top_k, experts) / 8;
    const int64_t width = Max<int64_t>(1, Min<int64_t>(4, groups / count(layer)));
    switch (element % kFields) {
      case 0:
        return mix(layer, 1 + tile) % experts;
      case 1:
        return Min(tile, count(layer)) * width;
      default:
        return 1;
    }
  };
}

}  // namespace eventide
