// The ops of early exit as tests: slow tables, float64 cosines and rotations.
#pragma once

#include "ops/exit_append.h"
#include "ops/exit_begin.h"
#include "ops/exit_input.h"
#include "ops/exit_remember.h"
#include "ops/exit_settle.h"
#include "ops/exit_test.h"
#include "tests/ops/op_rig.h"
#include "tests/ops/values.h"

namespace eventide {

// Tokens with cosines all around a threshold; some decided before, one without direction, one NaN.
inline void CheckExitTest(const OpBackend& backend, int tokens, int hidden) {
  INFO(backend.name << ": " << tokens << " tokens, hidden " << hidden);
  RandomValues random(static_cast<uint64_t>(tokens * 1000 + hidden));
  const int blocks = CeilDiv(hidden, 16);
  const auto count = [&](int each) { return static_cast<size_t>(tokens) * static_cast<size_t>(each); };
  std::vector<float> state = random.Normals<float>(count(hidden)), x = state;
  for (float& v : x) v += static_cast<float>(random.Normal(0.6));
  const std::vector<float> sums = random.Normals<float>(count(blocks));
  const std::vector<float> state_sums = random.Normals<float>(count(blocks));
  std::vector<i32> decided(static_cast<size_t>(tokens));
  std::vector<double> cosine(static_cast<size_t>(tokens));
  for (int t = 0; t < tokens; ++t) {
    if (t == 3) std::fill_n(state.begin() + t * hidden, hidden, 0.0f);
    if (t == 4) x[static_cast<size_t>(t * hidden)] = NAN;
    decided[static_cast<size_t>(t)] = t % 5 == 2;
    double products[3] = {};
    for (int c = 0; c < hidden; ++c) {
      const double a = x[static_cast<size_t>(t * hidden + c)], b = state[static_cast<size_t>(t * hidden + c)];
      products[0] += a * b, products[1] += a * a, products[2] += b * b;
    }
    cosine[static_cast<size_t>(t)] = products[0] / std::sqrt(products[1] * products[2]);
  }
  // In the widest gap of the middle ones, so that rounding decides nothing.
  std::vector<double> sorted;
  for (double c : cosine) {
    if (c == c) sorted.push_back(c);
  }
  std::sort(sorted.begin(), sorted.end());
  double threshold = 0.8, gap = 0;
  for (size_t i = 1; i < sorted.size(); ++i) {
    if (sorted[i] - sorted[i - 1] <= gap) continue;
    gap = sorted[i] - sorted[i - 1];
    threshold = (sorted[i] + sorted[i - 1]) / 2;
  }

  OpRig rig("exit_test");
  const Expr symbol = rig.graph().AddSymbol("tokens", 0, 100);
  const TensorId decided_id = rig.Add("decided", TensorRole::kState, decided);
  const TensorId state_id = rig.Add("state", TensorRole::kState, state);
  const TensorId state_sums_id = rig.Add("state_sums", TensorRole::kState, state_sums);
  rig.graph().Call<ExitTest>(
      "exit_test",
      {rig.Input("x", x), rig.Input("sums", sums), rig.Input("counts", std::vector<i32>{tokens, 0, 0, 0, 0, 0}),
       rig.Input("threshold", std::vector<float>{static_cast<float>(threshold)}), decided_id, state_id,
       state_sums_id},
      {hidden}, {CeilDiv(symbol, ExitTest::kTokens)}, Storage<BF16>::kVariant);
  rig.Start(backend);
  StepHeader header = {};
  header.symbols[0] = tokens;
  rig.Step(header);
  const std::vector<i32> now = rig.Get<i32>(decided_id);
  const std::vector<float> states = rig.Get<float>(state_id), state_sums_now = rig.Get<float>(state_sums_id);
  bool right = true, kept = true;
  for (int t = 0; t < tokens; ++t) {
    const bool before = decided[static_cast<size_t>(t)] != 0;
    right = right && (now[static_cast<size_t>(t)] != 0) == (before || cosine[static_cast<size_t>(t)] >= threshold);
    const auto same = [&](const std::vector<float>& a, const std::vector<float>& b, int stride) {
      return std::memcmp(a.data() + t * stride, b.data() + t * stride, static_cast<size_t>(stride) * 4) == 0;
    };
    kept = kept && same(states, before ? state : x, hidden) &&
           same(state_sums_now, before ? state_sums : sums, blocks);
  }
  CHECK(right);
  CHECK(kept);
  rig.CheckUnwritten();
}

// At a point (some stay, some leave behind one that left before), and behind a layer (some are held).
template <class T>
void CheckExitSettle(const OpBackend& backend, int tokens, int hidden, bool point) {
  INFO(backend.name << ": " << tokens << " tokens, hidden " << hidden << ", point " << point);
  RandomValues random(static_cast<uint64_t>(tokens * 1000 + hidden));
  const int blocks = CeilDiv(hidden, 16), left_before = 2, all = tokens + left_before;
  const auto count = [](int rows, int each) { return static_cast<size_t>(rows) * static_cast<size_t>(each); };
  const std::vector<float> state = random.Normals<float>(count(tokens, hidden));
  const std::vector<float> state_sums = random.Normals<float>(count(tokens, blocks));
  const std::vector<T> gain = random.Normals<T>(static_cast<size_t>(hidden), 0.1, 1.0);
  std::vector<i32> decided, target;
  int stay = 0, leave = 0;
  for (int t = 0; t < tokens; ++t) {
    decided.push_back(random.Below(2));
    if (!point) {
      target.push_back(decided.back() ? t : -1);
    } else {
      target.push_back(random.Below(2) ? stay++ : all + left_before + leave++);
    }
  }
  decided.push_back(0), target.push_back(0);
  OpRig rig("exit_settle");
  const Expr symbol = rig.graph().AddSymbol("tokens", 0, 1000);
  const TensorId state_id = rig.Add("state", TensorRole::kState, state);
  const TensorId state_sums_id = rig.Add("state_sums", TensorRole::kState, state_sums);
  const TensorId x_id = rig.Output<float>("x", count(2 * all, hidden));
  const TensorId next_id =
      rig.Output<T>("next", static_cast<size_t>(CeilDiv(tokens, 8) * ActivationGroup(hidden)));
  const TensorId sums_id = rig.Output<float>("sums", count(2 * all, blocks));
  const TensorId left_id = rig.Output<float>("left_sums", count(all, blocks));
  rig.graph().Call<ExitSettle>(
      "exit_settle",
      {rig.Input("decided", decided), rig.Input("target", target),
       rig.Input("counts", std::vector<i32>{tokens, left_before, 0, 0}), rig.Input("gain", gain),
       state_id, state_sums_id, x_id, x_id, next_id, sums_id, sums_id, left_id},
      // The call is behind layer 0.
      {rig.graph().Dim(symbol), {point ? 1 : 2, 1, 3}, hidden},
      {CeilDiv(hidden, ExitSettle::kColumns)}, Storage<T>::kVariant);
  rig.Start(backend);
  StepHeader header = {};
  header.symbols[0] = all;
  rig.Step(header);
  const std::vector<float> x = rig.Get<float>(x_id), sums = rig.Get<float>(sums_id);
  const std::vector<float> left = rig.Get<float>(left_id);
  const std::vector<T> next = rig.Get<T>(next_id);
  std::vector<char> written(static_cast<size_t>(2 * all));
  bool right = true;
  for (int t = 0; t < tokens; ++t) {
    const int to = target[static_cast<size_t>(t)];
    if (to < 0) continue;
    written[static_cast<size_t>(to)] = 1;
    for (int c = 0; c < hidden; ++c) {
      const float value = state[count(t, hidden) + static_cast<size_t>(c)];
      right = right && x[count(to, hidden) + static_cast<size_t>(c)] == value;
      if (to >= all) continue;
      right = right && ToFloat(next[static_cast<size_t>(ActivationIndex(hidden, to, c))]) ==
                           ToFloat(Storage<T>::From(value * ToFloat(gain[static_cast<size_t>(c)])));
    }
    for (int b = 0; b < blocks; ++b) {
      const float value = state_sums[count(t, blocks) + static_cast<size_t>(b)];
      right = right && sums[count(to, blocks) + static_cast<size_t>(b)] == value;
      right = right && (to < all || left[count(to - all, blocks) + static_cast<size_t>(b)] == value);
    }
  }
  CHECK(right);
  bool untouched = true;
  for (int to = 0; to < 2 * all; ++to) {
    untouched = untouched && (written[static_cast<size_t>(to)] ||
                              (x[count(to, hidden)] != x[count(to, hidden)] &&
                               sums[count(to, blocks)] != sums[count(to, blocks)]));
  }
  CHECK(untouched);
  rig.CheckUnwritten();
}

// Inputs of those who left, exactly; their keys and values against float64.
template <class T>
void CheckExitKeysAndValues(const OpBackend& backend, int left, bool qk_norm) {
  INFO(backend.name << ": " << left << " left, qk_norm " << qk_norm);
  const int tokens = left + 3, hidden = 70, head_dim = 24, kv_heads = 2, stride = 64, block = 4;
  const int layer_blocks = 40, half = head_dim / 2;
  RandomValues random(static_cast<uint64_t>(left) + 1);
  const auto size = [](int a, int b) { return static_cast<size_t>(a) * static_cast<size_t>(b); };
  const std::vector<float> x = random.Normals<float>(size(2 * tokens, hidden));
  const std::vector<T> gain = random.Normals<T>(static_cast<size_t>(hidden), 0.1, 1.0);
  const std::vector<float> projected = random.Normals<float>(size(left, kv_heads * stride));
  const std::vector<T> norm = random.Normals<T>(static_cast<size_t>(head_dim), 0.1, 1.0);
  std::vector<float> rope(size(100, head_dim));
  for (int p = 0; p < 100; ++p) {
    for (int d = 0; d < half; ++d) {
      rope[size(p, head_dim) + static_cast<size_t>(2 * d)] = static_cast<float>(std::cos(p / (1.0 + d)));
      rope[size(p, head_dim) + static_cast<size_t>(2 * d) + 1] = static_cast<float>(std::sin(p / (1.0 + d)));
    }
  }
  OpStep step;
  step.blocks_per_slot = 10;
  for (u32 i = 0; i < 40; ++i) step.block_table.push_back(39 - i);
  std::vector<i32> places;
  for (int e = 0; e < left; ++e) {
    places.push_back(e % 4);           // slot
    places.push_back(e / 4 * 3 + e % 2);  // position: below 40
  }
  places.resize(places.size() + 2);

  OpRig rig("exit_keys");
  const Expr symbol = rig.graph().AddSymbol("left", 0, 100);
  const Expr all = rig.graph().AddSymbol("tokens", 0, 200);
  const TensorId counts = rig.Input("counts", std::vector<i32>{1, left, 0, 0});
  const TensorId input_id =
      rig.Output<T>("input", static_cast<size_t>(CeilDiv(left, 8) * ActivationGroup(hidden)));
  const TensorId cache_id = rig.Output<T>(
      "cache", size(layer_blocks * 2 * kv_heads, block * head_dim), TensorRole::kState);
  rig.graph().Call<ExitInput>("exit_input", {rig.Input("x", x), rig.Input("gain", gain), counts, input_id},
                              {rig.graph().Dim(all), hidden},
                              {CeilDiv(symbol, ExitInput::kTokens), CeilDiv(hidden, ExitInput::kColumns)},
                              Storage<T>::kVariant);
  rig.graph().Call<ExitAppend>(
      "exit_append",
      {rig.Input("projected", projected), rig.Input("left", places), counts,
       rig.Input("k_norm", norm), rig.Input("rope", rope), cache_id},
      {16, head_dim, kv_heads, stride, block, qk_norm, 1e-5f},
      {CeilDiv(symbol, 16), kv_heads}, Storage<T>::kVariant);
  rig.Start(backend);
  step.Upload(rig);
  StepHeader header = step.Header(rig);
  header.symbols[0] = left;
  header.symbols[1] = tokens;
  rig.Step(header);
  const std::vector<T> input = rig.Get<T>(input_id), cache = rig.Get<T>(cache_id);
  bool exact = true;
  for (int e = 0; e < left; ++e) {
    for (int c = 0; c < hidden; ++c) {
      const float value = x[size(tokens + e, hidden) + static_cast<size_t>(c)] * ToFloat(gain[static_cast<size_t>(c)]);
      exact = exact && ToFloat(input[static_cast<size_t>(ActivationIndex(hidden, e, c))]) ==
                           ToFloat(Storage<T>::From(value));
    }
  }
  CHECK(exact);
  const KvLayout layout{block, kv_heads, head_dim};
  const i32 swizzle = backend.isa == kCudaBackend ? KvSwizzle(head_dim) : 0;
  std::vector<char> written(cache.size());
  WorstError error;
  for (int e = 0; e < left; ++e) {
    const int slot = places[static_cast<size_t>(2 * e)], position = places[static_cast<size_t>(2 * e) + 1];
    const u32 id = step.block_table[static_cast<size_t>(slot * 10 + position / block)];
    for (int head = 0; head < kv_heads; ++head) {
      const float* raw = projected.data() + size(e * kv_heads + head, stride);
      double sum = 0;
      for (int d = 0; d < head_dim; ++d) sum += double{raw[d]} * raw[d];
      const double scale = qk_norm ? 1 / std::sqrt(sum / head_dim + 1e-5) : 1;
      const auto key = [&](int d) { return raw[d] * scale * (qk_norm ? ToFloat(norm[static_cast<size_t>(d)]) : 1); };
      for (int d = 0; d < head_dim; ++d) {
        const float* angle = rope.data() + size(position, head_dim) + 2 * static_cast<size_t>(d % half);
        const double other = key(d < half ? d + half : d - half);
        const double want = key(d) * angle[0] + (d < half ? -other : other) * angle[1];
        const i32 column = KvColumn(swizzle, position, d);
        const size_t at_key = layout.Index(id, 0, head, position % block) + static_cast<size_t>(column);
        const size_t at_value = layout.Index(id, 1, head, position % block) + static_cast<size_t>(column);
        written[at_key] = written[at_value] = 1;
        // One rounding to storage, a dozen in float32 of terms of these sizes.
        const double terms = std::abs(key(d)) + std::abs(other);
        const double smallest = std::is_same_v<T, F16> ? 0x1p-25 : 1e-30;
        error.Add(ToFloat(cache[at_key]), want, std::abs(want) * Epsilon<T>() + 12 * 0x1p-24 * terms + smallest);
        exact = exact && ToFloat(cache[at_value]) == ToFloat(Storage<T>::From(raw[head_dim + d]));
      }
    }
  }
  CHECK(exact);
  CHECK(error.ratio <= 1);
  bool untouched = true;
  for (size_t i = 0; i < cache.size(); ++i) {
    untouched = untouched && (written[i] || ToFloat(cache[i]) != ToFloat(cache[i]));
  }
  CHECK(untouched);
  rig.CheckUnwritten();
}

// What a step begins with.
inline void CheckExitBegin(const OpBackend& backend, int rows, int hidden) {
  INFO(backend.name << ": " << rows << " rows, hidden " << hidden);
  RandomValues random(static_cast<uint64_t>(rows) + 1);
  const int blocks = CeilDiv(hidden, 16), tokens = 2 * rows;
  const auto size = [](int a, int b) { return static_cast<size_t>(a) * static_cast<size_t>(b); };
  std::vector<i32> row_start, output_token;
  for (int r = 0; r <= rows; ++r) row_start.push_back(2 * r);
  for (int r = 0; r < rows; ++r) output_token.push_back(2 * r + 1);
  output_token.push_back(-5);
  const std::vector<float> x = random.Normals<float>(size(tokens, hidden));
  const std::vector<float> sums = random.Normals<float>(size(tokens, blocks));
  OpRig rig("exit_begin");
  const Expr symbol = rig.graph().AddSymbol("tokens", 0, 200);
  const TensorId place = rig.Output<i32>("row_place", static_cast<size_t>(rows) + 1);
  const TensorId output = rig.Output<i32>("output_place", static_cast<size_t>(rows) + 1);
  const TensorId counts = rig.Output<i32>("counts", 6 * kExitCounts);
  rig.graph().Call<ExitBegin>("exit_begin",
                              {rig.Input("row_start", row_start), rig.Input("output_token", output_token),
                               rig.Input("plan_counts", std::vector<i32>{17, rows, tokens, 0}), place,
                               output, counts},
                              {{3, 1, 4}, 5}, {1}, Storage<BF16>::kVariant);
  const TensorId decided = rig.Output<i32>("decided", static_cast<size_t>(tokens));
  const TensorId state = rig.Output<float>("state", size(tokens, hidden));
  const TensorId state_sums = rig.Output<float>("state_sums", size(tokens, blocks));
  rig.graph().Call<ExitRemember>(
      "exit_remember", {rig.Input("x", x), rig.Input("sums", sums), decided, state, state_sums},
      {rig.graph().Dim(symbol), hidden},
      {CeilDiv(symbol, ExitRemember::kTokens), CeilDiv(hidden, ExitRemember::kColumns)},
      Storage<BF16>::kVariant);
  rig.Start(backend);
  OpStep step;
  step.slots.resize(1);
  step.rows.resize(static_cast<size_t>(rows));
  step.Upload(rig);
  StepHeader header = step.Header(rig);
  header.symbols[0] = tokens;
  rig.Step(header);
  row_start.back() = output_token.back() = -1;  // poison
  CHECK(rig.Get<i32>(place) == row_start);
  CHECK(rig.Get<i32>(output) == output_token);
  CHECK(rig.Get<i32>(decided) == std::vector<i32>(static_cast<size_t>(tokens), 0));
  CHECK(rig.Get<float>(state) == x);
  CHECK(rig.Get<float>(state_sums) == sums);
  const std::vector<i32> lines = rig.Get<i32>(counts);
  for (int line = 0; line < 6; ++line) {
    const std::vector<i32> got(lines.begin() + line * kExitCounts, lines.begin() + (line + 1) * kExitCounts);
    const std::vector<i32> want = line < 3 ? std::vector<i32>{tokens, 0, 17, 0, line == 2 ? (tokens + 1) / 2 : 0, rows}
                                            : std::vector<i32>(6, -1);
    CHECK(got == want);
  }
  rig.CheckUnwritten();
}

}  // namespace eventide
