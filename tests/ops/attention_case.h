// Longer than 400 lines because dense and block-sparse attention are built of the same tensors.
//
// Attention over a paged cache as a test: plan and paged_attention in one graph, run step by step,
// against softmax attention in float64 over all tokens seen so far.
#pragma once

#include <cmath>
#include <functional>
#include <vector>

#include "device/layout.h"
#include "ops/append_kv.h"
#include "ops/block_bounds.h"
#include "ops/paged_attention.h"
#include "ops/pick_blocks.h"
#include "ops/pick_items.h"
#include "ops/plan.h"
#include "tests/ops/op_rig.h"
#include "tests/ops/values.h"

namespace eventide {

struct AttentionShape {
  int head_dim = 64, kv_heads = 2, group = 3, window = 0, block_size = 16;
  bool qk_norm = false;
  int max_partials = 4096;  // 0: nothing is split
  int sequences = 2, max_positions = 256;
  int max_tokens = 64;  // of a step
  int picked = -1;      // >= 0: rows of one token attend to so many full blocks (ops/pick_blocks.h)
  int part_chunks = 2;  // then, of a part of a tile
  int long_tokens = 0;  // Plan::Params; -1: no row has large tiles
};

// The raw projections of every position of every sequence, and what is constant.
template <class T>
struct AttentionData {
  AttentionShape shape;
  int stride;
  std::vector<std::vector<float>> qkv;  // by sequence: [position][kv_head][stride]
  std::vector<T> q_norm, k_norm;
  std::vector<float> rope;

  AttentionData(const AttentionShape& s, uint64_t seed) : shape(s) {
    RandomValues random(seed);
    stride = RoundUp((s.group + 2) * s.head_dim, 32);
    for (int i = 0; i < s.sequences; ++i) {
      std::vector<float> values =
          random.Normals<float>(static_cast<size_t>(s.max_positions) * s.kv_heads * stride);
      for (size_t k = 0; k < values.size(); ++k) {
        if (static_cast<int>(k % stride) >= (s.group + 2) * s.head_dim) values[k] = NAN;  // padding
      }
      qkv.push_back(std::move(values));
    }
    q_norm = random.Normals<T>(s.head_dim, 0.1, 1.0);
    k_norm = random.Normals<T>(s.head_dim, 0.1, 1.0);
    const int half = s.head_dim / 2;
    rope.resize(static_cast<size_t>(s.max_positions) * half * 2);
    for (int p = 0; p < s.max_positions; ++p) {
      for (int d = 0; d < half; ++d) {
        const double angle = p * std::pow(10000.0, -static_cast<double>(d) / half);
        rope[(p * half + d) * 2] = static_cast<float>(std::cos(angle));
        rope[(p * half + d) * 2 + 1] = static_cast<float>(std::sin(angle));
      }
    }
  }

  const float* Raw(int sequence, int position, int kv_head) const {
    return qkv[sequence].data() +
           (static_cast<size_t>(position) * shape.kv_heads + kv_head) * stride;
  }
  // A head of head_dim floats after norm and rope, in float64.
  std::vector<double> Rotated(const float* x, int position, const std::vector<T>& gain) const {
    const int n = shape.head_dim, half = n / 2;
    std::vector<double> y(x, x + n), z(n);
    if (shape.qk_norm) {
      double sum = 0;
      for (const double v : y) sum += v * v;
      const double scale = 1 / std::sqrt(sum / n + 1e-6);
      for (int d = 0; d < n; ++d) y[d] *= scale * ToFloat(gain[d]);
    }
    for (int d = 0; d < half; ++d) {
      const double c = rope[(position * half + d) * 2], s = rope[(position * half + d) * 2 + 1];
      z[d] = y[d] * c - y[d + half] * s;
      z[d + half] = y[d + half] * c + y[d] * s;
    }
    return z;
  }

  struct Expected {
    std::vector<double> value, magnitude;  // magnitude: sum of weight * |v|, for the bound
    double score_size = 0;                 // largest sum of |q * k| * scale
  };
  // `sees`: which of the positions before it a position attends to.
  using Sees = std::function<bool(int)>;
  Expected Reference(int sequence, int position, int head, const Sees& sees = nullptr) const {
    const int n = shape.head_dim, kv_head = head / shape.group;
    const auto round = [](double v) {
      return static_cast<double>(ToFloat(Storage<T>::From(static_cast<float>(v))));
    };
    const std::vector<double> q =
        Rotated(Raw(sequence, position, kv_head) + head % shape.group * n, position, q_norm);
    const int low = shape.window ? std::max(0, position - shape.window + 1) : 0;
    std::vector<double> scores;
    Expected e{std::vector<double>(n), std::vector<double>(n)};
    double top = -HUGE_VAL, total = 0;
    for (int p = low; p <= position; ++p) {
      const std::vector<double> k = Rotated(Raw(sequence, p, kv_head) + shape.group * n, p, k_norm);
      double dot = 0, size = 0;
      for (int d = 0; d < n; ++d) {
        dot += q[d] * round(k[d]);
        size += std::abs(q[d] * k[d]);
      }
      const bool seen = !sees || sees(p);
      scores.push_back(seen ? dot / std::sqrt(static_cast<double>(n)) : -HUGE_VAL);
      if (!seen) continue;
      e.score_size = std::max(e.score_size, size / std::sqrt(static_cast<double>(n)));
      top = std::max(top, scores.back());
    }
    for (double& score : scores) total += score = std::exp(score - top);
    for (int p = low; p <= position; ++p) {
      const float* v = Raw(sequence, p, kv_head) + (shape.group + 1) * n;
      const double weight = scores[p - low] / total;
      for (int d = 0; d < n; ++d) {
        e.value[d] += weight * round(v[d]);
        e.magnitude[d] += weight * std::abs(v[d]);
      }
    }
    return e;
  }
};

// Tokens of each row of one step: (sequence, how many).
struct StepRow {
  int sequence, tokens;
};

template <class T>
class AttentionCase {
 public:
  using Outputs =
      std::vector<std::vector<std::vector<T>>>;  // [sequence][position][head * head_dim]

  AttentionCase(const OpBackend& backend, const AttentionData<T>& data)
      : data_(data), rig_("attention") {
    Build(backend);
  }

  void Step(const std::vector<StepRow>& rows) {
    const AttentionShape& s = data_.shape;
    const size_t token_floats = static_cast<size_t>(s.kv_heads) * data_.stride;
    std::vector<float> qkv(s.max_tokens * token_floats, NAN);
    step_.rows.clear();
    size_t token = 0;
    for (const StepRow& row : rows) {
      step_.rows.push_back(
          {static_cast<u32>(row.sequence), static_cast<u32>(row.tokens), 0, kRowNone});
      for (int i = 0; i < row.tokens; ++i, ++token) {
        const float* from = data_.Raw(
            row.sequence, static_cast<int>(step_.slots[row.sequence].context_length) + i, 0);
        std::copy(from, from + token_floats, qkv.begin() + static_cast<i64>(token * token_floats));
      }
    }
    REQUIRE(static_cast<int>(token) <= s.max_tokens);
    rig_.Set(qkv_, qkv);
    StepHeader header = step_.Header(rig_);
    header.symbols[0] = static_cast<i32>(rows.size());
    rig_.Step(header);
    const std::vector<T> out = rig_.template Get<T>(output_);
    const int k = s.kv_heads * s.group * s.head_dim;
    int at = 0;
    for (const StepRow& row : rows) {
      for (int i = 0; i < row.tokens; ++i, ++at) {
        std::vector<T> values(k);
        for (int c = 0; c < k; ++c) values[c] = out[ActivationIndex(k, at, c)];
        outputs[row.sequence].push_back(std::move(values));
      }
      step_.slots[row.sequence].context_length += static_cast<u32>(row.tokens);
    }
    rig_.WriteBuffer(step_.slots_buffer, step_.slots);
    for (const i32 count : rig_.template Get<i32>(merge_)) REQUIRE(count == 0);
  }

  // Positions [0, context) of a sequence as if they had been there: random keys and values, for
  // tests of bits alone.
  void Preload(int sequence, int context) {
    const AttentionShape& s = data_.shape;
    const KvLayout layout{s.block_size, s.kv_heads, s.head_dim};
    std::vector<T> cache = rig_.template Get<T>(cache_);
    RandomValues random(static_cast<uint64_t>(sequence) + 99);
    for (int p = 0; p < context; ++p) {
      const u32 block = step_.block_table[sequence * blocks_ + p / s.block_size];
      for (int kind = 0; kind < 2 * s.kv_heads; ++kind) {
        const std::vector<T> values = random.template Normals<T>(s.head_dim);
        std::copy(values.begin(), values.end(),
                  cache.begin() +
                      static_cast<i64>(layout.Index(block, kind % 2, kind / 2, p % s.block_size)));
      }
    }
    rig_.Set(cache_, cache);
    step_.slots[sequence].context_length = static_cast<u32>(context);
    rig_.WriteBuffer(step_.slots_buffer, step_.slots);
  }

  // Largest error over bound. The bound: scores are off by the rounding of q and k to storage (at
  // most eps of sum |q k| each) and fp32 sums; weights may be rounded to storage as well; then the
  // output is.
  double Error() const {
    const AttentionShape& s = data_.shape;
    WorstError error;
    for (int sequence = 0; sequence < s.sequences; ++sequence) {
      for (size_t p = 0; p < outputs[sequence].size(); ++p) {
        for (int head = 0; head < s.kv_heads * s.group; ++head) {
          const auto e = data_.Reference(sequence, static_cast<int>(p), head);
          const double weights =
              2 * e.score_size * (2 * Epsilon<T>() + 64 * 0x1p-24) + Epsilon<T>();
          for (int d = 0; d < s.head_dim; ++d) {
            const double bound = e.magnitude[d] * (2 * weights + 2 * Epsilon<T>() + 0x1p-18) + 1e-7;
            error.Add(ToFloat(outputs[sequence][p][head * s.head_dim + d]), e.value[d], bound);
          }
        }
      }
    }
    return error.ratio;
  }

  // What the last step's row picked of the full blocks in front of it, as positions of blocks, and its context.
  std::vector<int> Picked(int row, int kv_head, int sequence, int context) {
    const AttentionShape& s = data_.shape;
    const std::vector<i32> table = rig_.template Get<i32>(table_), picked = rig_.template Get<i32>(picked_);
    std::vector<int> positions;
    const int kept = (picked[row] - context % s.block_size) / s.block_size;
    for (int i = 0; i < kept; ++i) {
      const u32 id = static_cast<u32>(table[(row * s.kv_heads + kv_head) * blocks_ + i]);
      for (int b = 0; b < context / s.block_size; ++b) {
        if (step_.block_table[sequence * blocks_ + b] == id) positions.push_back(b);
      }
    }
    return positions;
  }

  Outputs outputs;

 private:
  void Build(const OpBackend& backend) {
    const AttentionShape& s = data_.shape;
    const int k = s.kv_heads * s.group * s.head_dim;
    const int max_items = MinAttentionItems(s.sequences, s.max_tokens, s.head_dim, s.group, sizeof(T)) + 64;
    const int max_groups = 64, heads = s.kv_heads * s.group;
    Graph& g = rig_.graph();
    const TensorId start =
        rig_.template Output<i32>("row_start", s.sequences + 1, TensorRole::kScratch);
    const TensorId row = rig_.template Output<i32>("token_row", s.max_tokens, TensorRole::kScratch);
    const TensorId output =
        rig_.template Output<i32>("row_output", s.sequences, TensorRole::kScratch);
    const TensorId token = rig_.template Output<i32>("output_token", 1, TensorRole::kScratch);
    const size_t item_words = static_cast<size_t>(max_items) * (sizeof(AttentionItem) / 4);
    const TensorId items = rig_.template Output<i32>("items", item_words, TensorRole::kScratch);
    const EventId planned = g.AddEvents("planned", {1});
    const TensorId counts = g.AddPublished("counts", {kStepCounts + OpRig::GuardElements<i32>()}, 0,
                                           std::max(max_items, s.max_tokens), planned, {0});
    rig_.Declare(counts, std::vector<i32>(kStepCounts));
    qkv_ = rig_.Input(
        "qkv",
        std::vector<float>(static_cast<size_t>(s.max_tokens) * s.kv_heads * data_.stride, NAN));
    blocks_ = CeilDiv(s.max_positions, s.block_size);
    const size_t block_elements = static_cast<size_t>(2) * s.kv_heads * s.block_size * s.head_dim;
    cache_ = rig_.template Output<T>("cache", s.sequences * blocks_ * block_elements,
                                     TensorRole::kState);
    const TensorId q_norm = rig_.Input("q_norm", data_.q_norm);
    const TensorId k_norm = rig_.Input("k_norm", data_.k_norm);
    const TensorId rope = rig_.Input("rope", data_.rope);
    const TensorId partials = rig_.template Output<float>(
        "partials", static_cast<size_t>(s.max_partials) * heads * (s.head_dim + 2),
        TensorRole::kScratch);
    merge_ = rig_.Add("merge", TensorRole::kState,
                      std::vector<i32>(static_cast<size_t>(max_groups) * s.kv_heads *
                                       AttentionSplits(s.head_dim, s.group, static_cast<int>(sizeof(T)))));
    output_ = rig_.template Output<T>("output", CeilDiv(s.max_tokens, 8) * ActivationGroup(k));
    const bool appends = s.long_tokens >= 0 && s.picked < 0;
    g.Call<Plan>("plan", {start, row, output, token, items, counts},
                 {s.head_dim, s.kv_heads, s.group, s.window, max_items, s.max_partials, max_groups, 1, 128,
                  std::max(s.long_tokens, 0), DimRef{-1, appends}},
                 {1}, Storage<T>::kVariant)
        .Notify(planned, {0});
    g.BeginSection("attention", 1);
    AttentionParams params = {s.head_dim, s.kv_heads, s.group, data_.stride, s.block_size, s.window,
                              static_cast<float>(1 / std::sqrt(static_cast<double>(s.head_dim))), 1e-6f,
                              s.qk_norm};
    const i32 splits = AttentionSplits(s.head_dim, s.group, static_cast<int>(sizeof(T)));
    const EventId appended = g.AddEvents("appended", {1});
    if (appends) {
      const Expr tokens = g.Load(counts, {kCountTokens});
      g.Call<AppendKv>("append_kv", {start, row, qkv_, k_norm, rope, cache_},
                       {s.head_dim, s.kv_heads, s.group, data_.stride, s.block_size, 1e-6f, s.qk_norm},
                       {CeilDiv(tokens, AppendKv::kTokens), s.kv_heads}, Storage<T>::kVariant)
          .Wait(planned, {0})
          .Notify(appended, {0});
    }
    if (s.picked < 0) {
      GridHandle attend = g.Call<PagedAttention>(
          "attention",
          {items, start, qkv_, cache_, q_norm, k_norm, rope, partials, merge_, output_, items, items}, params,
          {g.Load(counts, {kCountItems}), s.kv_heads, splits}, Storage<T>::kVariant);
      attend.Wait(planned, {0});
      if (appends) attend.Wait(appended, {0});
    } else {
      const Expr rows = g.AddSymbol("rows", 0, s.sequences);
      const TensorId bounds = rig_.template Output<T>(
          "bounds", static_cast<size_t>(s.sequences * blocks_ * s.kv_heads * 2 * s.head_dim), TensorRole::kState);
      picked_ = rig_.template Output<i32>("picked", s.sequences, TensorRole::kScratch);
      table_ = rig_.template Output<i32>(
          "table", static_cast<size_t>(s.sequences * s.kv_heads * blocks_), TensorRole::kScratch);
      const TensorId pick_items = rig_.template Output<i32>("pick_items", item_words, TensorRole::kScratch);
      const EventId picked = g.AddEvents("rows_picked", {1}), itemised = g.AddEvents("itemised", {1});
      const EventId attended = g.AddEvents("attended", {1});
      const TensorId pick_counts = g.AddPublished(
          "pick_counts", {kStepCounts + OpRig::GuardElements<i32>()}, 0, max_items, itemised, {0});
      rig_.Declare(pick_counts, std::vector<i32>(kStepCounts));
      g.Call<PickBlocks>("pick_blocks", {start, qkv_, bounds, q_norm, rope, picked_, table_},
                         {s.head_dim, s.kv_heads, s.group, data_.stride, s.block_size, s.picked, blocks_,
                          s.qk_norm, 1e-6f},
                         {rows, s.kv_heads}, Storage<T>::kVariant)
          .Wait(planned, {0})
          .Notify(picked, {0});
      g.Call<PickItems>("pick_items", {start, picked_, pick_items, pick_counts},
                        {s.head_dim, s.group, s.part_chunks, max_items, s.max_partials, max_groups}, {1},
                        Storage<T>::kVariant)
          .Wait(picked, {0})
          .Notify(itemised, {0});
      params.picked = blocks_;
      g.Call<PagedAttention>("attention",
                             {pick_items, start, qkv_, cache_, q_norm, k_norm, rope, partials, merge_,
                              output_, picked_, table_},
                             params, {g.Load(pick_counts, {kCountItems}), s.kv_heads, splits},
                             Storage<T>::kVariant)
          .Wait(itemised, {0})
          .Notify(attended, {0});
      g.Call<BlockBounds>("block_bounds", {start, cache_, bounds},
                          {s.head_dim, s.kv_heads, s.block_size}, {rows, s.kv_heads}, Storage<T>::kVariant)
          .Wait(attended, {0});
    }
    rig_.Start(backend);
    outputs.resize(s.sequences);
    step_.slots.resize(s.sequences);
    step_.blocks_per_slot = static_cast<u32>(blocks_);
    for (int i = 0; i < s.sequences * blocks_; ++i) {  // no two neighbours in order
      step_.block_table.push_back(static_cast<u32>(s.sequences * blocks_ - 1 - i));
    }
    step_.Upload(rig_);
  }

  const AttentionData<T>& data_;
  OpRig rig_;
  OpStep step_;
  TensorId qkv_, cache_, merge_, output_, picked_, table_;
  int blocks_ = 0;
};

// Sequence 0 arrives whole, sequence 1 in uneven pieces beside it, then both decode.
template <class T>
void CheckAgainstReference(const OpBackend& backend, AttentionShape s, int prompt) {
  INFO(backend.name << ", head_dim " << s.head_dim << ", " << s.kv_heads << " kv heads, group "
                    << s.group << ", window " << s.window << ", prompt " << prompt);
  s.max_positions = prompt + 8;
  s.max_tokens = prompt + 8;
  const AttentionData<T> data(s, static_cast<uint64_t>(prompt * 31 + s.head_dim));
  AttentionCase<T> attention(backend, data);
  const int part = prompt / 3 + 1;
  attention.Step({{1, part}});
  attention.Step({{0, prompt}, {1, 0}});
  attention.Step({{1, std::min(5, prompt)}});
  for (int i = 0; i < 4; ++i) attention.Step({{0, 1}, {1, 1}});
  attention.Step({});
  CHECK(attention.Error() <= 1);
}

template <class T>
typename AttentionCase<T>::Outputs Chunked(const OpBackend& backend, const AttentionData<T>& data,
                                           int length, int chunk) {
  AttentionCase<T> attention(backend, data);
  for (int done = 0; done < length; done += chunk) {
    attention.Step({{0, std::min(chunk, length - done)}});
  }
  return attention.outputs;
}

template <class T>
bool SameBits(const std::vector<std::vector<T>>& a, const std::vector<std::vector<T>>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(T)) != 0) return false;
  }
  return true;
}

template <class T>
void CheckChunks(const OpBackend& backend, const AttentionShape& s, int length,
                 const std::vector<int>& chunks, int other_workers) {
  const AttentionData<T> data(s, 7);
  const auto whole = Chunked(backend, data, length, length);
  OpBackend other = backend;
  other.workers = other_workers;
  for (const int chunk : chunks) {
    INFO("chunk " << chunk << ", window " << s.window);
    CHECK(SameBits(whole[0], Chunked(backend, data, length, chunk)[0]));
    CHECK(SameBits(whole[0], Chunked(other, data, length, chunk)[0]));
  }
}

// Decodes a few tokens behind a long context, with as many parts as `workers` want.
template <class T>
typename AttentionCase<T>::Outputs LongDecode(OpBackend backend, const AttentionData<T>& data,
                                              int context, int workers) {
  backend.workers = workers;
  AttentionCase<T> attention(backend, data);
  attention.Preload(0, context);
  attention.Step({{0, 1}, {1, 30}});
  attention.Step({{1, 1}, {0, 3}});
  return attention.outputs;
}

}  // namespace eventide
