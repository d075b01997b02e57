// Longer than 400 lines because the float64 oracle and the graph of one layer belong together.
//
// A layer of experts as a graph of its ops - choose, route, gate_up, down, combine - against float64 and
// against tables made the slow way, for any logits or drawn routes.
#pragma once

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "device/layout.h"
#include "ops/combine.h"
#include "ops/linear.h"
#include "ops/route.h"
#include "tests/ops/op_rig.h"
#include "tests/ops/values.h"

namespace eventide {

struct ExpertsShape {
  int tokens, experts, top_k, hidden, width;
  bool normalise = true, sigmoid = false, shared = false;
  float scale = 1.0f;
  bool counted = false;  // the number of tokens is an element of "count", not the dim
  int wave = 0;  // what `route` takes for the number of workers, if it is not 0: more make smaller tasks
};

// Stored values of one layer. Logits are what the test wants to happen.
template <class T>
struct ExpertsData {
  ExpertsShape s;
  std::vector<float> logits;           // [token][stride]; the shared gate behind the experts
  std::vector<i32> drawn;              // [draw][top_k] or empty
  std::vector<T> input, gate_up, down, gain;  // [token][hidden], [expert][2 * width][hidden], ...
  std::vector<float> sums, x, shared;

  ExpertsData(const ExpertsShape& shape, uint64_t seed) : s(shape) {
    RandomValues random(seed);
    logits = random.Normals<float>(static_cast<size_t>(s.tokens) * Stride(), 2.0);
    input = random.Normals<T>(static_cast<size_t>(s.tokens) * s.hidden);
    gate_up = random.Normals<T>(static_cast<size_t>(s.experts) * 2 * s.width * s.hidden, 0.1);
    down = random.Normals<T>(static_cast<size_t>(s.experts) * s.hidden * s.width, 0.3);
    gain = random.Normals<T>(s.hidden, 0.1, 1.0);
    sums.resize(static_cast<size_t>(s.tokens) * CeilDiv(s.hidden, 16));
    for (float& v : sums) v = static_cast<float>(8 + random.Below(16));
    x = random.Normals<float>(static_cast<size_t>(s.tokens) * s.hidden);
    shared = random.Normals<float>(x.size());
  }
  int Stride() const { return s.experts + 1; }

  // The experts of a token, best first.
  std::vector<int> Chosen(int token) const {
    const float* row = &logits[static_cast<size_t>(token) * Stride()];
    std::vector<int> ids(s.experts);
    std::iota(ids.begin(), ids.end(), 0);
    // Equal ones stay in the order of ids; NaN is behind everything.
    std::stable_sort(ids.begin(), ids.end(), [&](int a, int b) {
      return row[a] > row[b] || (std::isnan(row[b]) && !std::isnan(row[a]));
    });
    ids.resize(s.top_k);
    if (!drawn.empty()) {
      const size_t line = token % (drawn.size() / s.top_k);  // of step 0
      for (int k = 0; k < s.top_k; ++k) ids[k] = drawn[line * s.top_k + k];
    }
    return ids;
  }
  std::vector<double> Weights(int token) const {
    const float* row = &logits[static_cast<size_t>(token) * Stride()];
    double top = -HUGE_VAL;
    for (int e = 0; e < s.experts; ++e) top = row[e] > top ? row[e] : top;  // no NaN
    const auto score = [&](int e) {
      return s.sigmoid ? 1 / (1 + std::exp(-static_cast<double>(row[e]))) : std::exp(row[e] - top);
    };
    std::vector<double> weights;
    for (int e : Chosen(token)) weights.push_back(score(e));
    double sum = s.sigmoid ? 1 : 0;
    if (s.normalise) {
      sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    } else if (!s.sigmoid) {
      for (int e = 0; e < s.experts; ++e) sum += score(e);
    }
    for (double& w : weights) w *= s.scale / sum;
    return weights;
  }
};

template <class T>
class ExpertsCase {
 public:
  ExpertsCase(const OpBackend& backend, const ExpertsData<T>& data, int graph_tokens = 0)
      : d_(data), s_(data.s), rig_("experts"), most_(std::max(graph_tokens, s_.tokens)) {
    Graph& g = rig_.graph();
    tokens_ = g.AddSymbol("tokens", 0, std::max(most_, 1));
    dim_ = g.Dim(s_.counted ? g.AddSymbol("more", 0, most_ + kMore) : tokens_);
    AddTensors(backend);
    AddGrids();
    rig_.Start(backend);
    StepHeader header = {};
    header.symbols[0] = s_.tokens;
    header.symbols[1] = s_.tokens + kMore;
    rig_.Step(header);
  }

  void Check() {
    CheckTables();
    CheckResidual();
    rig_.CheckUnwritten();
  }
  std::vector<float> Residual() { return rig_.template Get<float>(x_); }

 private:
  static std::vector<T> Pack(const OpBackend& backend, const std::vector<T>& rows, int count, int k) {
    std::vector<T> packed(static_cast<size_t>(PackedTile(32, k)) * CeilDiv(count, 32), T{});
    for (int r = 0; r < count; ++r) {
      for (int i = 0; i < k; ++i) {
        packed[PackedFragment(32, k, r, i) + backend.FragmentOrder(r % 16, i % 16)] =
            rows[static_cast<size_t>(r) * k + i];
      }
    }
    return packed;
  }
  // Rows of each expert packed on their own: experts begin at whole tiles. Gate and up rows alternate by 8.
  std::vector<T> PackExperts(const OpBackend& backend, bool up) const {
    const int rows = up ? 2 * s_.width : s_.hidden, k = up ? s_.hidden : s_.width;
    const std::vector<T>& from = up ? d_.gate_up : d_.down;
    std::vector<T> all;
    for (int e = 0; e < s_.experts; ++e) {
      std::vector<T> mine(static_cast<size_t>(RoundUp(up ? RoundUp(s_.width, 8) * 2 : rows, 32)) * k,
                          T{});
      for (int r = 0; r < rows; ++r) {
        const int to = !up ? r : r % s_.width / 8 * 16 + r % s_.width % 8 + r / s_.width * 8;
        std::copy_n(from.begin() + (static_cast<i64>(e) * rows + r) * k, k,
                    mine.begin() + static_cast<i64>(to) * k);
      }
      const std::vector<T> packed = Pack(backend, mine, static_cast<int>(mine.size()) / k, k);
      all.insert(all.end(), packed.begin(), packed.end());
    }
    return all;
  }
  std::vector<T> Activations() const {
    std::vector<T> a(static_cast<size_t>(ActivationGroup(s_.hidden)) * CeilDiv(s_.tokens, 8), T{});
    for (int t = 0; t < RoundUp(s_.tokens, 8); ++t) {
      for (int i = 0; i < s_.hidden; ++i) {
        a[ActivationIndex(s_.hidden, t, i)] =
            t < s_.tokens ? d_.input[static_cast<size_t>(t) * s_.hidden + i]
                          : Storage<T>::From(NAN);
      }
    }
    return a;
  }
  // Poison but for the padding of K, which nobody writes.
  std::vector<T> PoisonedActivations(int k, int64_t slots) const {
    std::vector<T> a(static_cast<size_t>(ActivationGroup(k) * (slots / 8 + 1)), T{});
    for (int slot = 0; slot < slots; ++slot) {
      for (int i = 0; i < k; ++i) a[ActivationIndex(k, slot, i)] = Storage<T>::From(NAN);
    }
    return a;
  }

  void AddTensors(const OpBackend& backend) {
    const int pairs = most_ * s_.top_k, groups = CeilDiv(most_, 8);
    slots_ = static_cast<int>(MostSlots(pairs, s_.experts));
    tiles_ = static_cast<int>(MostTiles(pairs, s_.experts));
    logits_ = rig_.Input("logits", d_.logits);
    count_ = rig_.Input("count", std::vector<i32>{s_.tokens + kMore, s_.tokens});
    drawn_ = rig_.Input("drawn", d_.drawn);
    pairs_ = rig_.template Output<i32>("pairs", pairs * 4, TensorRole::kState);
    counts_ = rig_.template Output<i32>("counts", groups * s_.experts, TensorRole::kState);
    bases_ = rig_.template Output<i32>("bases", groups * s_.experts, TensorRole::kState);
    pair_slot_ = rig_.template Output<i32>("pair_slot", pairs, TensorRole::kState);
    slot_token_ = rig_.template Output<i32>("slot_token", slots_, TensorRole::kState);
    Graph& g = rig_.graph();
    routed_ = g.AddEvents("routed", {1});
    const auto published = [&](const char* name, int elements, int low, int high) {
      const TensorId id = g.AddPublished(name, {elements + OpRig::GuardElements<i32>()}, low, high,
                                         routed_, {0});
      rig_.Declare(id, std::vector<i32>(elements, -1));
      return id;
    };
    table_ = published("tiles", (tiles_ + 1) * 4, 0, slots_ + s_.experts);
    tile_count_ = published("tile_count", 1, 1, std::max(tiles_, 1));
    splits_ = published("splits", kExpertLinears, 1, std::max(UpTiles(), DownTiles()));
    input_ = rig_.Input("input", Activations());
    sums_ = rig_.Input("sums", d_.sums);
    gate_up_ = rig_.Input("gate_up", PackExperts(backend, true));
    down_ = rig_.Input("down", PackExperts(backend, false));
    act_ = rig_.Add("act", TensorRole::kState, PoisonedActivations(s_.width, slots_));
    outputs_ = rig_.template Output<float>("outputs", static_cast<size_t>(slots_) * s_.hidden,
                                           TensorRole::kState);
    shared_ = rig_.Input("shared", d_.shared);
    gain_ = rig_.Input("gain", d_.gain);
    x_ = rig_.Add("x", TensorRole::kState, d_.x);
    next_ = rig_.template Output<T>("next", CeilDiv(s_.tokens, 8) * ActivationGroup(s_.hidden));
    next_sums_ = rig_.template Output<float>(
        "next_sums", static_cast<size_t>(s_.tokens) * CeilDiv(s_.hidden, 16));
  }

  int UpTiles() const { return CeilDiv(RoundUp(s_.width, 8) * 2, 32); }
  int DownTiles() const { return CeilDiv(s_.hidden, 32); }

  void AddGrids() {
    Graph& g = rig_.graph();
    const int count_index = s_.counted ? 1 : -1;
    const Expr groups = CeilDiv(tokens_, 8), choosing = groups * Min(tokens_ / 9, 1);
    const EventId chosen = g.AddEvents("chosen", {CeilDiv(std::max(most_, 1), 8)});
    Route::Params route = {dim_,
                           count_index,
                           s_.experts,
                           s_.top_k,
                           d_.Stride(),
                           static_cast<i32>(d_.drawn.size()) / s_.top_k,
                           0,
                           s_.sigmoid,
                           s_.normalise,
                           s_.scale,
                           {},
                           s_.wave};
    route.row_tiles[kExpertUp] = UpTiles();
    route.row_tiles[kExpertDown] = DownTiles();
    const std::vector<Operand> tables = {logits_,  drawn_, pairs_,     counts_,     pairs_,    counts_,
                                         bases_, pair_slot_, slot_token_, table_, tile_count_, count_, splits_};
    const int variant = Storage<T>::kVariant;
    g.Call<Route>("choose", tables, route, {choosing}, variant).Notify(chosen, {At(0)});
    route.groups = 1;
    g.Call<Route>("route", tables, route, {1}, variant)
        .Wait(chosen, {IndexRange(0, choosing)})
        .Notify(routed_, {0});
    const Expr tiles = g.Load(tile_count_, {0}) * Min(tokens_, 1);
    const EventId act_done = g.AddEvents("act_done", {std::max(tiles_, 1)});
    const EventId down_done = g.AddEvents("down_done", {1});
    LinearParams linear = {};
    linear.tile_rows = 32;
    linear.count_index = -1;
    linear.rows = 2 * s_.width;
    linear.k = s_.hidden;
    linear.epilogue = LinearParams::kSiluMul;
    linear.output_stride = s_.width;
    linear.norm_size = s_.hidden;
    linear.epsilon = 1e-5f;
    linear.expert_tiles = UpTiles();
    linear.gathers = kExpertUp;
    std::vector<Operand> operands(Linear::kInfo.operand_count, Operand(gain_));
    for (int unused : {LinearOperand::kOutput, LinearOperand::kResidual, LinearOperand::kNext,
                       LinearOperand::kNextSums, LinearOperand::kBest}) {
      operands[unused] = Operand(x_);
    }
    const Expr group = static_cast<int64_t>(ActivationGroup(s_.width));
    const Operand act = Operand(act_).Region({IndexRange(
        g.Load(table_, {At(0) * 4 + 1}) * group, g.Load(table_, {At(0) * 4 + 5}) * group)});
    operands[LinearOperand::kWeight] = gate_up_;
    operands[LinearOperand::kInput] = input_;
    operands[LinearOperand::kSums] = sums_;
    operands[LinearOperand::kOutput] = act;
    operands[LinearOperand::kTiles] = table_;
    operands[LinearOperand::kSlotToken] = slot_token_;
    g.Call<Linear>("gate_up", operands, linear, {tiles, g.Load(splits_, {int{kExpertUp}})}, variant)
        .Wait(routed_, {0})
        .Notify(act_done, {At(0)});
    linear.rows = linear.output_stride = s_.hidden;
    linear.k = s_.width;
    linear.epilogue = LinearParams::kStore;
    linear.norm_size = linear.gathers = 0;
    linear.expert_tiles = DownTiles();
    operands[LinearOperand::kWeight] = down_;
    operands[LinearOperand::kInput] = act;
    operands[LinearOperand::kOutput] = outputs_;
    g.Call<Linear>("down", operands, linear, {tiles, g.Load(splits_, {int{kExpertDown}})}, variant)
        .Wait(act_done, {At(0)})
        .Notify(down_done, {0});
    g.Call<Combine>("combine",
                    {outputs_, pairs_, pair_slot_, shared_, logits_, gain_, x_, next_, next_sums_, count_},
                    {dim_, count_index, s_.hidden, s_.top_k, s_.shared ? s_.experts : -1, d_.Stride()},
                    {CeilDiv(tokens_, Combine::kTokens), CeilDiv(s_.hidden, Combine::kColumns)},
                    variant)
        .Wait(down_done, {0});
  }

  // Experts and weights of every pair, and what the grouping made of them.
  void CheckTables() {
    const std::vector<i32> pairs = rig_.template Get<i32>(pairs_);
    const std::vector<i32> slot = rig_.template Get<i32>(pair_slot_);
    const std::vector<i32> slot_token = rig_.template Get<i32>(slot_token_);
    const std::vector<i32> table = rig_.template Get<i32>(table_);
    std::vector<std::vector<int>> tokens_of(s_.experts);  // in the order of tokens
    WorstError error;
    for (int t = 0; t < s_.tokens; ++t) {
      const std::vector<int> chosen = d_.Chosen(t);
      const std::vector<double> weights = d_.Weights(t);
      for (int k = 0; k < s_.top_k; ++k) {
        const i32* pair = &pairs[(static_cast<size_t>(t) * s_.top_k + k) * 4];
        REQUIRE(pair[0] == chosen[k]);
        tokens_of[chosen[k]].push_back(t);
        float weight;
        std::memcpy(&weight, &pair[2], sizeof(weight));
        // Two roundings a term and an exponential of 2^-21 each.
        error.Add(weight, weights[k], std::abs(weights[k]) * (s_.experts + 64) * 0x1p-22 + 1e-30);
      }
    }
    CHECK(error.ratio <= 1);
    int tile = 0, group = 0;
    for (int e = 0; e < s_.experts; ++e) {
      const int count = static_cast<int>(tokens_of[e].size());
      for (int first = 0; first < count; first += 32, ++tile) {
        const i32 expected[3] = {e, group + first / 8, std::min(32, count - first)};
        REQUIRE(std::equal(expected, expected + 3, table.begin() + tile * 4));
      }
      for (int i = 0; i < count; ++i) REQUIRE(slot_token[group * 8 + i] == tokens_of[e][i]);
      group += CeilDiv(count, 8);
    }
    REQUIRE(table[tile * 4 + 1] == group);
    // All row tiles of an expert have a task.
    const std::vector<i32> splits = rig_.template Get<i32>(splits_);
    for (int i = 0; i < tile; ++i) {
      ExpertTile line;
      std::memcpy(&line, &table[i * 4], sizeof(line));
      REQUIRE(splits[kExpertUp] * line.rows[kExpertUp] >= UpTiles());
      REQUIRE((splits[kExpertUp] - 1) * line.rows[kExpertUp] < UpTiles());
      REQUIRE(splits[kExpertDown] * line.rows[kExpertDown] >= DownTiles());
      REQUIRE((splits[kExpertDown] - 1) * line.rows[kExpertDown] < DownTiles());
    }
    REQUIRE(rig_.template Get<i32>(tile_count_)[0] == std::max(tile, 1));
    // A pair's slot is one of its expert's that holds its token, and nobody else's.
    std::vector<int> used(slots_ + 1, 0);
    for (int i = 0; i < s_.tokens * s_.top_k; ++i) {
      REQUIRE(slot[i] >= 0);
      REQUIRE(slot[i] < group * 8);
      REQUIRE(slot_token[slot[i]] == i / s_.top_k);
      REQUIRE(++used[slot[i]] == 1);
    }
  }

  struct Exact {
    std::vector<double> value, size;
  };
  // One expert's output for one token, with the size of what was added for the error bound.
  Exact Expert(int token, int expert) const {
    const int blocks = CeilDiv(s_.hidden, 16);
    double norm = 0;
    for (int b = 0; b < blocks; ++b) norm += d_.sums[token * blocks + b];
    const double scale = 1 / std::sqrt(norm / s_.hidden + 1e-5);
    std::vector<double> act(s_.width), act_error(s_.width);
    for (int i = 0; i < s_.width; ++i) {
      double dot[2] = {0, 0}, size[2] = {0, 0};
      for (int part = 0; part < 2; ++part) {
        for (int h = 0; h < s_.hidden; ++h) {
          const double product =
              static_cast<double>(ToFloat(
                  d_.gate_up[((static_cast<size_t>(expert) * 2 + part) * s_.width + i) * s_.hidden +
                             h])) *
              ToFloat(d_.input[static_cast<size_t>(token) * s_.hidden + h]) * scale;
          dot[part] += product;
          size[part] += std::abs(product);
        }
      }
      act[i] = dot[0] / (1 + std::exp(-dot[0])) * dot[1];
      const double terms = (s_.hidden / 8.0 + 40) * 0x1p-24;
      act_error[i] = 1.1 * size[0] * terms * std::abs(dot[1]) + size[1] * terms * std::abs(dot[0]) +
                     std::abs(act[i]) * (2 * Epsilon<T>() + (8 + std::abs(dot[0])) * 0x1p-22) + 1e-7;
    }
    Exact result{std::vector<double>(s_.hidden), std::vector<double>(s_.hidden)};
    for (int h = 0; h < s_.hidden; ++h) {
      for (int i = 0; i < s_.width; ++i) {
        const double weight =
            ToFloat(d_.down[(static_cast<size_t>(expert) * s_.hidden + h) * s_.width + i]);
        result.value[h] += weight * act[i];
        result.size[h] += std::abs(weight) * (act_error[i] + std::abs(act[i]) *
                                                                 (s_.width / 8.0 + 40) * 0x1p-24);
      }
    }
    return result;
  }

  void CheckResidual() {
    const std::vector<float> x = Residual();
    const std::vector<float> sums = rig_.template Get<float>(next_sums_);
    const std::vector<T> next = rig_.template Get<T>(next_);
    WorstError error, sum_error;
    bool exact = true;
    const int blocks = CeilDiv(s_.hidden, 16);
    for (int t = 0; t < s_.tokens; ++t) {
      std::vector<double> want(s_.hidden), bound(s_.hidden, 1e-30);
      const std::vector<int> chosen = d_.Chosen(t);
      const std::vector<double> weights = d_.Weights(t);
      for (int k = 0; k < s_.top_k; ++k) {
        const Exact one = Expert(t, chosen[k]);
        for (int h = 0; h < s_.hidden; ++h) {
          want[h] += weights[k] * one.value[h];
          bound[h] += std::abs(weights[k]) *
                      (one.size[h] + std::abs(one.value[h]) * (s_.experts + 80) * 0x1p-22);
        }
      }
      const double logit = d_.logits[static_cast<size_t>(t) * d_.Stride() + s_.experts];
      for (int h = 0; h < s_.hidden; ++h) {
        const size_t i = static_cast<size_t>(t) * s_.hidden + h;
        if (s_.shared) want[h] += d_.shared[i] / (1 + std::exp(-logit));
        want[h] += d_.x[i];
        error.Add(x[i], want[h], bound[h] + (std::abs(want[h]) + 4) * s_.top_k * 0x1p-22);
        const T expected = Storage<T>::From(x[i] * ToFloat(d_.gain[h]));
        exact = exact && ToFloat(next[ActivationIndex(s_.hidden, t, h)]) == ToFloat(expected);
      }
      for (int b = 0; b < blocks; ++b) {
        double sum = 0;
        for (int h = b * 16; h < std::min(s_.hidden, b * 16 + 16); ++h) {
          sum += static_cast<double>(x[static_cast<size_t>(t) * s_.hidden + h]) *
                 x[static_cast<size_t>(t) * s_.hidden + h];
        }
        sum_error.Add(sums[t * blocks + b], sum, 17 * 0x1p-24 * sum + 1e-30);
      }
    }
    CHECK(error.ratio <= 1);
    CHECK(sum_error.ratio <= 1);
    CHECK(exact);
  }

  const ExpertsData<T>& d_;
  const ExpertsShape s_;
  OpRig rig_;
  const int most_;  // tokens that the graph is made for
  int slots_ = 0, tiles_ = 0;
  static constexpr int kMore = 13;
  Expr tokens_;
  DimRef dim_;
  EventId routed_;
  TensorId count_, logits_, drawn_, pairs_, counts_, bases_, pair_slot_, slot_token_, table_, tile_count_, splits_;
  TensorId input_, sums_, gate_up_, down_, act_, outputs_, shared_, gain_, x_, next_, next_sums_;
};

template <class T>
void CheckExperts(const std::vector<OpBackend>& backends, const ExpertsData<T>& data) {
  const ExpertsShape& s = data.s;
  for (const OpBackend& backend : backends) {
    INFO(backend.name << ": " << s.tokens << " tokens, " << s.top_k << " of " << s.experts
                      << " experts, hidden " << s.hidden << ", width " << s.width);
    ExpertsCase<T>(backend, data).Check();
  }
}

// Logits that send the tokens where `expert(token, rank)` says.
template <class T, class F>
void Steer(ExpertsData<T>* data, const F& expert) {
  for (int t = 0; t < data->s.tokens; ++t) {
    for (int k = 0; k < data->s.top_k; ++k) {
      data->logits[static_cast<size_t>(t) * data->Stride() + expert(t, k)] =
          40.0f - static_cast<float>(k) * 0.5f;
    }
  }
}

}  // namespace eventide
