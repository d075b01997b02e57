// Early exit as graph fragments (ops/exit_tables.h says what leaving means):
//
//   begin:    plan -> exit_begin (tables); embedding -> exit_remember (states) -> the first layer
//   layers:   down -> exit_test -> exit_rows -> exit_settle -> the next layer, at a point; elsewhere
//             down -> exit_settle only while tokens wait for their row
//             beside attention: exit_input -> exit_kv -> exit_append, keys and values of all who left before
//             the layer from the states they left with. No layer waits for these, nor they for another's.
#include "core/status.h"
#include "models/decoder_parts.h"
#include "ops/exit_append.h"
#include "ops/exit_begin.h"
#include "ops/exit_input.h"
#include "ops/exit_remember.h"
#include "ops/exit_rows.h"
#include "ops/exit_settle.h"
#include "ops/exit_test.h"
#include "ops/linear.h"

namespace eventide {
namespace {

// Columns that coordinate `at` of a grid has, `each` per task, of `all`.
IndexRange Columns(int at, int each, int64_t all) {
  return IndexRange(Min(At(at) * each, Expr(all)), Min(At(at) * each + each, Expr(all)));
}

class Builder {
 public:
  explicit Builder(const ExitsPlace& place)
      : place_(place),
        g_(*place.graph),
        c_(place.decoder->config),
        t_(*place.tensors),
        e_(place.tensors->exits),
        shape_(c_),
        layers_(c_.layers),
        tokens_(place.tokens),
        tile_(Linear::TileTokens(static_cast<i32>(DTypeSize(place.decoder->storage)))),
        token_tiles_(CeilDiv(tokens_, tile_)),
        blocks_(CeilDiv(c_.hidden, 16)),
        points_(e_.points) {}

  void Begin() {
    g_.Call<ExitBegin>("exit_begin",
                       {t_.row_start, t_.output_token, t_.counts, e_.row_place, e_.output_place,
                        Operand(e_.counts).Region({IndexRange(0, points_.first)})},
                       ExitBegin::Params{points_, c_.layers}, {1}, place_.variant)
        .Wait(t_.plan_done, {0})
        .Notify(e_.decided_at, {0})
        .Notify(e_.settled, {0, 0});
    const Expr first = At(0) * ExitRemember::kTokens;
    const IndexRange tokens(first, Min(first + ExitRemember::kTokens, tokens_));
    const IndexRange columns = Columns(1, ExitRemember::kColumns, c_.hidden);
    const IndexRange blocks = Columns(1, ExitRemember::kColumns / 16, blocks_);
    const Expr tile = At(0) / (tile_ / ExitRemember::kTokens);
    g_.Call<ExitRemember>(
          "exit_remember",
          {Operand(t_.x).Region({tokens, columns}), Operand(t_.ssq_a).Region({tokens, blocks}),
           Operand(e_.decided).Region({tokens}), Operand(e_.state).Region({tokens, columns}),
           Operand(e_.state_sums).Region({tokens, blocks})},
          ExitRemember::Params{g_.Dim(tokens_), c_.hidden},
          {CeilDiv(tokens_, ExitRemember::kTokens), CeilDiv(c_.hidden, ExitRemember::kColumns)},
          place_.variant)
        .Wait(place_.embedded, {tile})
        .Notify(place_.x_ready, {0, tile});
  }

  void BehindLayer() {
    const Expr point = IsPoint(Layer() + 1);
    const EventId tested = g_.AddEvents("exit_tested", {layers_});
    const Expr first = At(0) * ExitTest::kTokens;
    const IndexRange tokens(Min(first, tokens_), Min(first + ExitTest::kTokens, tokens_));
    const auto mine = [&](TensorId tensor) { return Operand(tensor).Region({tokens}); };
    const Operand line(e_.counts, Layer());
    g_.Call<ExitTest>("exit_test",
                      {mine(t_.x), mine(t_.ssq_a), line, Operand(e_.thresholds, Layer()),
                       mine(e_.decided), mine(e_.state), mine(e_.state_sums)},
                      ExitTest::Params{c_.hidden},
                      {Count(Layer(), kExitTests)}, place_.variant)
        .Wait(place_.mlp_done, {Layer(), At(0) / (tile_ / ExitTest::kTokens)})
        .Notify(tested, {Layer()});
    const IndexRange all(0, tokens_);
    const auto whole = [&](TensorId tensor) { return Operand(tensor).Region({all}); };
    // Behind those who left before.
    const Expr left = Count(Layer(), kExitLeft);
    const IndexRange newly(left, Max(tokens_, left)), leaving(tokens_ + newly.low, tokens_ + newly.high);
    const IndexRange lines(Layer() + 1, Expr(layers_ + 1));
    g_.Call<ExitRows>("exit_rows",
                      {t_.row_start, line, whole(e_.decided), e_.row_place, t_.items,
                       e_.output_place, Operand(e_.totals, Layer()), whole(e_.target),
                       Operand(e_.left).Region({newly}),
                       Operand(e_.counts).Region({lines})},
                      ExitRows::Params{g_.Dim(tokens_), points_, c_.layers}, {point}, place_.variant)
        .Wait(tested, {Layer()})
        .Notify(e_.decided_at, {Layer() + 1});

    const Expr settles = g_.Load(e_.counts, {Layer() + 1, int{kExitSettles}});
    const IndexRange columns = Columns(0, ExitSettle::kColumns, c_.hidden);
    const IndexRange blocks = Columns(0, ExitSettle::kColumns / 16, blocks_);
    g_.Call<ExitSettle>(
          "exit_settle",
          {whole(e_.decided), Operand(e_.target).Region({IndexRange(0, tokens_ * point)}), line,
           Operand(t_.norm_a, Layer() + 1),
           Operand(e_.state).Region({all, columns}), Operand(e_.state_sums).Region({all, blocks}),
           Operand(t_.x).Region({all, columns}), Operand(t_.x).Region({leaving, columns}),
           Operand(t_.xa).Region({IndexRange(0, CeilDiv(tokens_, 8)),
                                  Columns(0, ExitSettle::kColumns * 8, ActivationGroup(c_.hidden))}),
           Operand(t_.ssq_a).Region({all, blocks}), Operand(t_.ssq_a).Region({leaving, blocks}),
           Operand(e_.left_sums).Region({newly, blocks})},
          ExitSettle::Params{g_.Dim(tokens_), points_, c_.hidden},
          {settles * CeilDiv(c_.hidden, ExitSettle::kColumns)}, place_.variant)
        .Wait(place_.mlp_done,
              {Layer(), IndexRange(0, CeilDiv(Count(Layer(), kExitStay), tile_))})
        .Notify(e_.settled, {Layer() + 1, 0});
  }

  // Of those who left, what they owe the later layers.
  void KeysAndValues() {
    const Expr left = Count(Layer(), kExitLeft);
    const Expr tiles = CeilDiv(left, tile_);
    const EventId input_done = g_.AddEvents("exit_input_done", {layers_, token_tiles_});
    const EventId kv_done = g_.AddEvents("exit_kv_done", {layers_, token_tiles_});
    const IndexRange group(At(0) * ExitInput::kTokens,
                           Min(At(0) * ExitInput::kTokens + ExitInput::kTokens, left));
    g_.Call<ExitInput>(
          "exit_input",
          {Operand(t_.x).Region({IndexRange(tokens_ + group.low, tokens_ + group.high)}),
           Operand(t_.norm_a, Layer()), Operand(e_.counts, Layer()),
           Operand(e_.input, Layer())
               .Region({At(0), Columns(1, ExitInput::kColumns * 8, ActivationGroup(c_.hidden))})},
          ExitInput::Params{g_.Dim(tokens_), c_.hidden},
          {CeilDiv(left, ExitInput::kTokens), CeilDiv(c_.hidden, ExitInput::kColumns)},
          place_.variant)
        .Wait(e_.settled, {StartOf(Layer()), 0})
        .Notify(input_done, {Layer(), At(0) / (tile_ / ExitInput::kTokens)});

    const int rows = c_.kv_heads * shape_.kv_stride;
    LinearParams params = {};
    params.tile_rows = TileRows(rows);
    params.tiles = 1;
    params.tokens = g_.Dim(tokens_);
    params.count_index = kExitLeft;
    params.rows = rows;
    params.k = c_.hidden;
    params.epilogue = LinearParams::kStore;
    params.output_stride = rows;
    params.norm_size = c_.hidden;
    params.epsilon = c_.rms_eps;
    params.has_bias = e_.kv_w.bias >= 0;
    const IndexRange tokens(At(0) * tile_, Min(At(0) * tile_ + tile_, left));
    const int each = tile_ / 8;
    const IndexRange groups(At(0) * each, Min(At(0) * each + each, CeilDiv(tokens_, 8)));
    std::vector<Operand> operands(Linear::kInfo.operand_count,
                                  Operand(t_.unused).Region({IndexRange(0, 0)}));
    for (int i = 0; i < Linear::kInfo.operand_count; ++i) {
      if (Linear::kInfo.operands[i].mode == kRead) {
        operands[i] = Operand(TensorId{e_.kv_w.weight}, Layer());
      }
    }
    operands[LinearOperand::kInput] = Operand(e_.input, Layer()).Region({groups});
    operands[LinearOperand::kSums] = Operand(e_.left_sums).Region({tokens});
    operands[LinearOperand::kCount] = Operand(e_.counts, Layer());
    operands[LinearOperand::kOutput] =
        Operand(e_.projected, Layer()).Region({tokens, Columns(1, params.tile_rows, rows)});
    if (params.has_bias) {
      operands[LinearOperand::kBias] = Operand(TensorId{e_.kv_w.bias}, Layer());
    }
    g_.Call<Linear>("exit_kv", operands, params, {tiles, rows / params.tile_rows}, place_.variant)
        .Wait(input_done, {Layer(), At(0)})
        .Notify(kv_done, {Layer(), At(0)});

    ExitAppend::Params append = {};
    append.tokens = tile_;
    append.head_dim = c_.head_dim;
    append.kv_heads = c_.kv_heads;
    append.stride = shape_.kv_stride;
    append.block_size = place_.decoder->limits.block_size;
    append.qk_norm = c_.qk_norm;
    append.epsilon = c_.rms_eps;
    g_.Call<ExitAppend>("exit_append",
                        {Operand(e_.projected, Layer()).Region({tokens}),
                         Operand(e_.left).Region({tokens}), Operand(e_.counts, Layer()),
                         Operand(t_.k_norm, Layer()), Operand(t_.rope, 0),
                         Operand(t_.cache, Layer())},
                        append, {tiles, c_.kv_heads}, place_.variant)
        .Wait(kv_done, {Layer(), At(0)})
        // Others' tokens: nothing waits here in practice, and Verify sees who writes the cache first.
        .Wait(place_.attn_done, {Layer(), IndexRange(0, c_.kv_heads)});
  }

 private:
  Expr StartOf(const Expr& layer) const { return ExitStart(points_, layer); }
  // 1 or 0: whether tokens may leave in front of a layer.
  Expr IsPoint(const Expr& layer) const { return Min(Max(StartOf(layer) - layer + 1, 0), 1); }
  Expr Count(const Expr& layer, int which) const {
    return g_.Load(e_.counts, {layer, which});
  }

  const ExitsPlace& place_;
  Graph& g_;
  const ModelConfig& c_;
  const DecoderTensors& t_;
  const ExitTensors& e_;
  const DecoderShape shape_;
  const int64_t layers_;
  const Expr tokens_;
  const int tile_;  // tokens of a linear's task
  const Expr token_tiles_;
  const int blocks_;
  const ExitPoints points_;
};

}  // namespace

Expr ExitStart(const ExitPoints& points, const Expr& layer) {
  const int most = (points.last - points.first) / points.every + 1;
  const Expr passed = Min(Max(layer - points.first + points.every, 0) / points.every, most);
  // In forms that are seen not to fall: ranges of layers are waited for.
  if (points.first >= points.every) {
    return Min(passed, 1) * (points.first - points.every) + passed * points.every;
  }
  return Min(passed, 1) * points.first + Max(passed - 1, 0) * points.every;
}

void AddExitBegin(const ExitsPlace& place) {
  Builder(place).Begin();
}
void AddExitPoint(const ExitsPlace& place) {
  Builder(place).BehindLayer();
}
void AddExitKeysAndValues(const ExitsPlace& place) {
  Builder(place).KeysAndValues();
}

std::vector<int> TokensOfLayers(const Decoder& decoder, const std::vector<int32_t>& exit_counts) {
  std::vector<int> tokens;
  for (int layer = 0; layer < decoder.config.layers; ++layer) {
    tokens.push_back(exit_counts[static_cast<size_t>(layer * kExitCounts + kExitStay)]);
  }
  return tokens;
}

PublishedValues SampleExits(const Decoder& decoder, int64_t tokens, uint64_t seed) {
  if (!decoder.HasExits()) return [](int, int64_t) { return int64_t{0}; };
  const int counts = decoder.exit_counts.index;
  const ExitPoints points = ExitPointsOf(decoder);
  const int64_t layers = decoder.config.layers;
  return [=](int tensor, int64_t element) -> int64_t {
    if (tensor != counts) return 0;
    // Fewer stay behind each point, down to none for some seeds.
    const int64_t layer = element / kExitCounts;
    int64_t stay = tokens;
    bool moved = false;  // by the point right in front
    for (int64_t at = 1; at <= Min(layer, layers); ++at) {
      moved = false;
      if (!points.InFrontOf(static_cast<i32>(at))) continue;
      const int64_t mixed = static_cast<int64_t>(
          (seed * 31 + static_cast<uint64_t>(at)) * 0x9e3779b97f4a7c15u >> 33);
      const int64_t left = mixed % 3 == 0 ? 0 : mixed % 3 == 1 ? stay : mixed % (stay + 1);
      moved = left > 0;
      stay -= left;
    }
    const bool held = stay > 1 && layer >= points.first && seed % 2 == 0;
    switch (element % kExitCounts) {
      case kExitStay:
        return stay;
      case kExitLeft:
        return tokens - stay;
      case kExitItems:
        return Min<int64_t>(stay, 3);
      case kExitOutputs:
        return 0;  // nothing depends on it
      case kExitSettles:
        return layer > 0 && (moved || held);
      default:
        return points.InFrontOf(static_cast<i32>(layer) + 1) ? CeilDiv(stay, kExitTestTokens) : 0;
    }
  };
}

}  // namespace eventide
