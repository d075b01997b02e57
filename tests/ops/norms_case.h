// Embedding and final norm as tests: inputs, poison, float64 results, error bounds.
#pragma once

#include "ops/embedding.h"
#include "ops/final_norm.h"
#include "ops/wide_norm.h"
#include "tests/ops/op_rig.h"
#include "tests/ops/values.h"

namespace eventide {

template <class T>
void CheckEmbedding(const OpBackend& backend, int tokens, int hidden, bool packed) {
  INFO(backend.name << ", " << tokens << " tokens, hidden " << hidden << ", packed " << packed);
  const int vocab = 37, blocks = CeilDiv(hidden, 16);
  RandomValues random(hidden * 100 + tokens);
  const std::vector<T> rows = random.Normals<T>(static_cast<size_t>(vocab) * hidden);
  std::vector<T> table = rows;
  if (packed) {
    table.assign(PackedTile(32, hidden) * CeilDiv(vocab, 32), T{});
    for (int id = 0; id < vocab; ++id) {
      for (int c = 0; c < hidden; ++c) {
        table[PackedFragment(32, hidden, id, c) + backend.FragmentOrder(id % 16, c % 16)] =
            rows[id * hidden + c];
      }
    }
  }
  const std::vector<T> gain = random.Normals<T>(hidden, 0.1, 1.0);
  // Tokens alternate between two rows' spans: the first has 2/3 of them, after a context of 3.
  const int split = tokens * 2 / 3;
  OpStep step;
  step.rows = {{1, static_cast<u32>(split), 0, 0}, {0, static_cast<u32>(tokens - split), 0, 0}};
  step.slots.resize(2);
  step.slots[1].context_length = 3;
  for (int s = 0; s < 2; ++s) {
    std::vector<i32> history(tokens + 4);
    for (i32& id : history) id = random.Below(vocab);
    step.histories.push_back(history);
  }
  std::vector<i32> token_row(tokens);
  for (int i = 0; i < tokens; ++i) token_row[i] = i < split ? 0 : 1;

  OpRig rig("embedding");
  const Expr symbol = rig.graph().AddSymbol("tokens", 0, 100);
  const TensorId table_id = rig.Input("table", table);
  const TensorId gain_id = rig.Input("gain", gain);
  const TensorId start_id = rig.Input("row_start", std::vector<i32>{0, split, tokens});
  const TensorId row_id = rig.Input("token_row", token_row);
  const TensorId x_id = rig.Output<float>("x", static_cast<size_t>(tokens) * hidden);
  const TensorId next_id = rig.Output<T>("next", CeilDiv(tokens, 8) * ActivationGroup(hidden));
  const TensorId sums_id = rig.Output<float>("next_sums", static_cast<size_t>(tokens) * blocks);
  rig.graph().Call<Embedding>(
      "embedding", {table_id, gain_id, start_id, row_id, x_id, next_id, sums_id},
      {rig.graph().Dim(symbol), hidden, vocab, packed ? 32 : 0},
      {CeilDiv(symbol, 8), CeilDiv(hidden, Embedding::kColumns)}, Storage<T>::kVariant);
  rig.Start(backend);
  step.Upload(rig);
  StepHeader header = step.Header(rig);
  header.symbols[0] = tokens;
  rig.Step(header);

  const std::vector<float> x = rig.Get<float>(x_id);
  const std::vector<float> sums = rig.Get<float>(sums_id);
  const std::vector<T> next = rig.Get<T>(next_id);
  std::vector<char> written(next.size());
  WorstError sum_error;
  bool exact = true;
  for (int token = 0; token < tokens; ++token) {
    const int row = token_row[token];
    const int at = token - (row ? split : 0) + (row ? 0 : 3);
    const int id = step.histories[step.rows[row].slot][at];
    for (int b = 0; b < blocks; ++b) {
      double sum = 0;
      for (int c = b * 16; c < std::min(hidden, b * 16 + 16); ++c) {
        const float value = ToFloat(rows[id * hidden + c]);
        sum += static_cast<double>(value) * value;
        exact = exact && x[token * hidden + c] == value;
        const i64 to = ActivationIndex(hidden, token, c);
        written[to] = 1;
        exact = exact && ToFloat(next[to]) == ToFloat(Storage<T>::From(value * ToFloat(gain[c])));
      }
      sum_error.Add(sums[token * blocks + b], sum, 17 * 0x1p-24 * sum);  // 16 roundings
    }
  }
  CHECK(exact);
  CHECK(sum_error.ratio <= 1);
  bool untouched = true;
  for (size_t i = 0; i < next.size(); ++i) {
    const u8* bytes = reinterpret_cast<const u8*>(&next[i]);
    untouched = untouched && (written[i] || (bytes[0] == 0xff && bytes[1] == 0xff));
  }
  CHECK(untouched);
  rig.CheckUnwritten();
}

template <class T>
void CheckFinalNorm(const OpBackend& backend, int outputs, int hidden) {
  INFO(backend.name << ", " << outputs << " outputs, hidden " << hidden);
  const int tokens = 2 * outputs + 1;
  RandomValues random(hidden * 100 + outputs);
  std::vector<float> x = random.Normals<float>(static_cast<size_t>(tokens) * hidden, 3.0);
  const std::vector<T> gain = random.Normals<T>(hidden, 0.1, 1.0);
  std::vector<i32> output_token(outputs);
  for (int i = 0; i < outputs; ++i) output_token[i] = 2 * i + 1;
  for (int token = 0; token < tokens; token += 2) {  // nobody asks for these
    for (int c = 0; c < hidden; ++c) x[token * hidden + c] = NAN;
  }
  // As the last residual leaves them: sums of squares over blocks of 16 columns.
  const int blocks = CeilDiv(hidden, 16);
  std::vector<float> sums(static_cast<size_t>(tokens) * blocks);
  for (int token = 0; token < tokens; ++token) {
    for (int c = 0; c < hidden; ++c) {
      float& sum = sums[token * blocks + c / 16];
      sum = Fma(x[token * hidden + c], x[token * hidden + c], sum);
    }
  }
  OpRig rig("final_norm");
  const Expr symbol = rig.graph().AddSymbol("outputs", 0, 100);
  const TensorId x_id = rig.Input("x", x);
  const TensorId sums_id = rig.Input("sums", sums);
  const TensorId gain_id = rig.Input("gain", gain);
  const TensorId token_id = rig.Input("output_token", output_token);
  const TensorId counts_id = rig.Input("counts", std::vector<i32>{0, outputs, tokens, 0});
  const TensorId out_id = rig.Output<T>("output", CeilDiv(outputs, 8) * ActivationGroup(hidden));
  rig.graph().Call<FinalNorm>(
      "final_norm", {x_id, sums_id, gain_id, token_id, counts_id, out_id}, {hidden, 1e-5f},
      {CeilDiv(symbol, 8), CeilDiv(hidden, FinalNorm::kColumns)}, Storage<T>::kVariant);
  rig.Start(backend);
  StepHeader header = {};
  header.symbols[0] = outputs;
  rig.Step(header);
  const std::vector<T> out = rig.Get<T>(out_id);
  // Below 2^-14 F16 has fewer bits.
  const double smallest = std::is_same_v<T, F16> ? 0x1p-25 : 1e-30;
  WorstError error;
  for (int i = 0; i < outputs; ++i) {
    const float* row = x.data() + output_token[i] * hidden;
    double sum = 0;
    for (int c = 0; c < hidden; ++c) sum += static_cast<double>(row[c]) * row[c];
    const double rms = std::sqrt(sum / hidden + 1e-5);
    for (int c = 0; c < hidden; ++c) {
      const double want = row[c] / rms * ToFloat(gain[c]);
      // One rounding to storage; the sum of squares and the rest stay within a few fp32 roundings.
      const double bound =
          std::abs(want) * (Epsilon<T>() + (hidden / 32 + 12) * 0x1p-24) + smallest;
      error.Add(ToFloat(out[ActivationIndex(hidden, i, c)]), want, bound);
    }
  }
  CHECK(error.ratio <= 1);
  rig.CheckUnwritten();
}

// Norms over all heads of a token's queries and keys; values and padding stay as they are.
template <class T>
void CheckWideNorm(const OpBackend& backend, int tokens, int kv_heads, int group, int head_dim) {
  INFO(backend.name << ": " << tokens << " tokens, " << kv_heads << " x (" << group << " + 2) x "
                    << head_dim);
  RandomValues random(static_cast<uint64_t>(tokens * 31 + kv_heads));
  const int stride = RoundUp((group + 2) * head_dim, 32), row = kv_heads * stride;
  const int keys = kv_heads * head_dim, queries = keys * group;
  const std::vector<float> before = random.Normals<float>(static_cast<size_t>(tokens) * row, 2.0);
  const std::vector<T> q_gain = random.Normals<T>(queries, 0.1, 1.0);
  const std::vector<T> k_gain = random.Normals<T>(keys, 0.1, 1.0);
  OpRig rig("wide_norm");
  const Expr symbol = rig.graph().AddSymbol("tokens", 0, 100);
  const TensorId qkv = rig.Add("qkv", TensorRole::kState, before);
  rig.graph().Call<WideNorm>("wide_norm",
                             {qkv, rig.Input("q_gain", q_gain), rig.Input("k_gain", k_gain)},
                             {rig.graph().Dim(symbol), head_dim, kv_heads, group, stride, row, 1e-5f},
                             {CeilDiv(symbol, WideNorm::kTokens)}, Storage<T>::kVariant);
  rig.Start(backend);
  StepHeader header = {};
  header.symbols[0] = tokens;
  rig.Step(header);
  const std::vector<float> after = rig.Get<float>(qkv);
  WorstError error;
  bool untouched = true;
  for (int t = 0; t < tokens; ++t) {
    double sum[2] = {0, 0};
    const auto part = [&](int i) { return i % stride < group * head_dim ? 0 : 1; };
    const auto normed = [&](int i) { return i % stride < (group + 1) * head_dim; };
    for (int i = 0; i < row; ++i) {
      const double v = before[static_cast<size_t>(t) * row + i];
      if (normed(i)) sum[part(i)] += v * v;
    }
    for (int i = 0; i < row; ++i) {
      const size_t at = static_cast<size_t>(t) * row + i;
      if (!normed(i)) {
        untouched = untouched && after[at] == before[at];
        continue;
      }
      const int head = i / stride, in_head = i % stride;
      const bool key = part(i) == 1;
      const double gain = key ? ToFloat(k_gain[head * head_dim + in_head - group * head_dim])
                              : ToFloat(q_gain[head * group * head_dim + in_head]);
      const double want = before[at] * gain / std::sqrt(sum[key] / (key ? keys : queries) + 1e-5);
      error.Add(after[at], want, std::abs(want) * (queries / 32 + 14) * 0x1p-24 + 1e-30);
    }
  }
  CHECK(error.ratio <= 1);
  CHECK(untouched);
  rig.CheckUnwritten();
}

}  // namespace eventide
