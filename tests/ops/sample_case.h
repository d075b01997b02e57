// Runs the sample op over given logits: one row per case, tables as plan and the head would leave
// them.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <set>
#include <vector>

#include "ops/sample.h"
#include "tests/ops/op_rig.h"
#include "tests/ops/values.h"

namespace eventide {

struct SampleRow {
  std::vector<float> logits;
  SlotState slot = {};
  u32 query_length = kDeviceKnows;
  u32 sampling = kRowSample;
};

class SampleCase {
 public:
  // All rows have the same vocabulary.
  SampleCase(const OpBackend& backend, std::vector<SampleRow> rows)
      : rig_("sample"), rows_(std::move(rows)) {
    const int vocab = static_cast<int>(rows_[0].logits.size());
    const int stride = RoundUp(vocab, 32), tiles = CeilDiv(vocab, kBestIds);
    const int n = static_cast<int>(rows_.size());
    std::vector<float> logits(static_cast<size_t>(n) * stride,
                              NAN);  // beyond the vocabulary: poison
    std::vector<i32> best(static_cast<size_t>(n) * tiles * 2), row_output(n);
    for (int r = 0; r < n; ++r) {
      row_output[r] = rows_[r].sampling & kRowSample ? r : -1;
      std::copy(rows_[r].logits.begin(), rows_[r].logits.end(), logits.begin() + r * stride);
      for (int tile = 0; tile < tiles; ++tile) {
        int top = tile * kBestIds;
        for (int id = top; id < std::min(vocab, (tile + 1) * kBestIds); ++id) {
          const float a = rows_[r].logits[id], b = rows_[r].logits[top];
          if (a > b || (std::isnan(b) && !std::isnan(a))) top = id;
        }
        best[(r * tiles + tile) * 2] = std::bit_cast<i32>(rows_[r].logits[top]);
        best[(r * tiles + tile) * 2 + 1] = top;
      }
    }
    const Expr symbol = rig_.graph().AddSymbol("rows", 0, 1024);
    const TensorId output_id = rig_.Input("row_output", row_output);
    const TensorId logits_id = rig_.Input("logits", logits);
    const TensorId best_id = rig_.Input("best", best);
    rig_.graph().Call<Sample>("sample", {output_id, logits_id, best_id}, {vocab, stride}, {symbol},
                              Storage<BF16>::kVariant);
    rig_.Start(backend);
    for (int r = 0; r < n; ++r) {
      SlotState slot = rows_[r].slot;
      if (slot.max_length == 0) slot.max_length = 1000;
      step_.slots.push_back(slot);
      step_.histories.push_back(std::vector<i32>(8, -7));
      step_.rows.push_back({static_cast<u32>(r), rows_[r].query_length, 0, rows_[r].sampling});
    }
    step_.Upload(rig_);
    if (step_.slots.empty()) return;
    rig_.WriteBuffer(step_.slots_buffer, step_.slots);
  }

  std::vector<StepResult> Run() {
    StepHeader header = step_.Header(rig_);
    header.symbols[0] = static_cast<i32>(rows_.size());
    rig_.Step(header);
    return rig_.ReadBuffer<StepResult>(step_.results_buffer, rows_.size());
  }
  std::vector<SlotState> Slots() {
    return rig_.ReadBuffer<SlotState>(step_.slots_buffer, rows_.size());
  }
  // Back to how they were, each slot with this key.
  void Rekey(const std::vector<u64>& keys) {
    for (size_t r = 0; r < keys.size(); ++r) step_.slots[r].key = keys[r];
    rig_.WriteBuffer(step_.slots_buffer, step_.slots);
  }
  std::vector<i32> History(int row) { return rig_.ReadBuffer<i32>(step_.history_buffers[row], 8); }

 private:
  OpRig rig_;
  OpStep step_;
  std::vector<SampleRow> rows_;
};

inline SampleRow Sampled(std::vector<float> logits, float temperature, u32 top_k, float top_p,
                         u64 key = 1) {
  SampleRow row;
  row.logits = std::move(logits);
  row.slot.temperature = temperature;
  row.slot.top_k = top_k;
  row.slot.top_p = top_p;
  row.slot.key = key;
  return row;
}

inline std::vector<float> Logs(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}

// The exact distribution: order by (logit descending, id ascending), top-k, softmax, top-p,
// softmax.
inline std::vector<double> Exact(const SampleRow& row) {
  const size_t n = row.logits.size();
  std::vector<int> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return row.logits[a] > row.logits[b]; });
  const size_t k = row.slot.top_k == 0 ? n : std::min<size_t>(n, row.slot.top_k);
  std::vector<double> weight(n, 0.0);
  double total = 0;
  for (size_t i = 0; i < k; ++i) {
    weight[order[i]] = std::exp((static_cast<double>(row.logits[order[i]]) - row.logits[order[0]]) /
                                row.slot.temperature);
    total += weight[order[i]];
  }
  double mass = 0, kept = 0;
  for (size_t i = 0; i < k; ++i) {
    if (row.slot.top_p < 1 && i > 0 && mass >= row.slot.top_p * total) weight[order[i]] = 0;
    mass += weight[order[i]];
    kept += weight[order[i]];
  }
  for (double& w : weight) w /= kept;
  return weight;
}

// Draws of `row` under many keys; each run of the op makes 500.
inline std::vector<int> Draws(const OpBackend& backend, const SampleRow& row, int draws) {
  std::vector<int> counts(row.logits.size());
  const int batch = std::min(draws, 500);
  SampleCase sample(backend, std::vector<SampleRow>(batch, row));
  for (int done = 0; done < draws; done += batch) {
    std::vector<u64> keys(batch);
    for (int i = 0; i < batch; ++i) keys[i] = static_cast<u64>(done + i) * 0x9e3779b97f4a7c15ull;
    sample.Rekey(keys);
    for (const StepResult& result : sample.Run()) {
      REQUIRE(result.token >= 0);
      REQUIRE(result.token < static_cast<int>(counts.size()));
      ++counts[result.token];
    }
  }
  return counts;
}

// Pearson's statistic over the ids expected at least 5 times (the others pooled), in standard
// deviations above its mean. Ids of probability 0 must never occur.
inline double ChiSquare(const std::vector<int>& counts, const std::vector<double>& exact,
                        int draws) {
  double sum = 0, pooled_expected = 0, pooled_seen = 0;
  int cells = -1;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (exact[i] == 0) {
      CHECK(counts[i] == 0);
      continue;
    }
    const double expected = exact[i] * draws;
    if (expected < 5) {
      pooled_expected += expected;
      pooled_seen += counts[i];
      continue;
    }
    sum += (counts[i] - expected) * (counts[i] - expected) / expected;
    ++cells;
  }
  if (pooled_expected >= 1) {
    sum += (pooled_seen - pooled_expected) * (pooled_seen - pooled_expected) / pooled_expected;
    ++cells;
  }
  return cells > 0 ? (sum - cells) / std::sqrt(2.0 * cells) : 0;
}

inline std::set<int> Support(const OpBackend& backend, const SampleRow& row, int draws = 2000) {
  std::set<int> ids;
  const std::vector<int> counts = Draws(backend, row, draws);
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i]) ids.insert(static_cast<int>(i));
  }
  return ids;
}

}  // namespace eventide
