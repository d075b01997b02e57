// Runs the sample op over given logits, one row per case, with tables as plan and the head would leave
// them.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <optional>
#include <set>
#include <vector>

#include "ops/sample.h"
#include "tests/ops/op_rig.h"
#include "tests/ops/values.h"

namespace eventide {

struct SampleRow {
  std::vector<float> logits;             // of the last known token
  std::vector<std::vector<float>> more;  // of its drafts
  std::vector<i32> drafts;               // behind the history
  SlotState slot = {};
  u32 query_length = kDeviceKnows;
  u32 sampling = kRowSample;
  std::vector<i32> known = {};  // how the history begins; the rest of it is -7
  std::optional<SlotState> partner = std::nullopt;  // a slot that has no row in this step
};

class SampleCase {
 public:
  // All rows have the same vocabulary.
  SampleCase(const OpBackend& backend, std::vector<SampleRow> rows)
      : rig_("sample"), rows_(std::move(rows)) {
    const int vocab = static_cast<int>(rows_[0].logits.size());
    const int stride = RoundUp(vocab, 32);
    const int n = static_cast<int>(rows_.size());
    for (int r = 0; r < n; ++r) AddRow(rows_[r], r);
    std::vector<float> logits;
    std::vector<i32> best, row_start = {0}, token_row, row_output, output_token;
    for (int r = 0; r < n; ++r) {
      const i32 length = step_.Length(step_.rows[r]);
      const bool draws = rows_[r].sampling & kRowSample && length > 0;
      const i32 outputs =
          !draws                                                                          ? 0
          : rows_[r].query_length == kDeviceKnows && !(rows_[r].sampling & kRowKnown) ? length
                                                                                          : 1;
      row_output.push_back(draws ? static_cast<i32>(output_token.size()) : -1);
      token_row.insert(token_row.end(), length, r);
      row_start.push_back(static_cast<i32>(token_row.size()));
      for (i32 i = 0; i < outputs; ++i) {
        output_token.push_back(row_start.back() - outputs + i);
        AddOutput(i == 0 ? rows_[r].logits : rows_[r].more.at(i - 1), &logits, &best);
      }
    }
    outputs_ = static_cast<int>(output_token.size());
    const std::vector<i32> counts = {0, outputs_, static_cast<i32>(token_row.size()), 0};
    // The published count stands in as a symbol: there is no plan here to publish it.
    const Expr tasks = rig_.graph().AddSymbol("tasks", 0, 1 << 15);
    const std::vector<Operand> operands = {
        rig_.Input("row_start", row_start),       rig_.Input("token_row", token_row),
        rig_.Input("row_output", row_output),     rig_.Input("output_token", output_token),
        rig_.Input("counts", counts),             rig_.Input("logits", logits),
        rig_.Input("best", best),
        rig_.Output<i32>("drawn", outputs_ + 1, TensorRole::kState),
        arrived_ = rig_.Add("arrived", TensorRole::kState, std::vector<u32>(n))};
    rig_.graph().Call<Sample>("sample", operands, {vocab, stride}, {tasks},
                              Storage<BF16>::kVariant);
    rig_.Start(backend);
    for (const SampleRow& row : rows_) step_.slots.push_back(row.partner.value_or(SlotState{}));
    step_.Upload(rig_);
    if (step_.slots.empty()) return;
    for (int r = 0; r < n; ++r) {
      if (rows_[r].partner) step_.slots[r].partner = AddressOf(n + r);
    }
    rig_.WriteBuffer(step_.slots_buffer, step_.slots);
  }

  std::vector<StepResult> Run() {
    StepHeader header = step_.Header(rig_);
    header.symbols[0] = outputs_ + static_cast<i32>(rows_.size());
    rig_.Step(header);
    CHECK(rig_.Get<u32>(arrived_) == std::vector<u32>(rows_.size()));
    return rig_.ReadBuffer<StepResult>(step_.results_buffer, rows_.size());
  }
  std::vector<SlotState> Slots() {
    return rig_.ReadBuffer<SlotState>(step_.slots_buffer, rows_.size());
  }
  std::vector<SlotState> Partners() {
    std::vector<SlotState> all = rig_.ReadBuffer<SlotState>(step_.slots_buffer, 2 * rows_.size());
    return {all.begin() + static_cast<long>(rows_.size()), all.end()};
  }
  // Back to how they were, each slot with this key.
  void Rekey(const std::vector<u64>& keys) {
    for (size_t r = 0; r < keys.size(); ++r) step_.slots[r].key = keys[r];
    rig_.WriteBuffer(step_.slots_buffer, step_.slots);
  }
  std::vector<i32> History(int row) {
    return rig_.ReadBuffer<i32>(step_.history_buffers[row], kCapacity);
  }
  static constexpr int kCapacity = 64;

 private:
  uint64_t AddressOf(int slot) const {
    return step_.slots_buffer.address + static_cast<uint64_t>(slot) * sizeof(SlotState);
  }
  void AddRow(const SampleRow& row, int r) {
    SlotState slot = row.slot;
    if (slot.max_length == 0) slot.max_length = 1000;
    const u32 drafts = static_cast<u32>(row.drafts.size());
    if (drafts > 0) slot.pace = drafts;
    std::vector<i32> history = row.known;
    history.resize(kCapacity, -7);
    std::copy(row.drafts.begin(), row.drafts.end(), history.begin() + slot.history_length);
    step_.slots.push_back(slot);
    step_.histories.push_back(history);
    const u32 more = row.sampling & kRowKnown ? 1 : drafts;  // tokens besides the last known one
    step_.rows.push_back({static_cast<u32>(r), row.query_length, more, row.sampling});
  }
  // What the head leaves of one output.
  static void AddOutput(const std::vector<float>& values, std::vector<float>* logits,
                        std::vector<i32>* best) {
    const int vocab = static_cast<int>(values.size());
    logits->insert(logits->end(), values.begin(), values.end());
    logits->resize(RoundUp(static_cast<int>(logits->size()), 32), NAN);  // poison
    for (int first = 0; first < vocab; first += kBestIds) {
      int top = first;
      for (int id = top; id < std::min(vocab, first + kBestIds); ++id) {
        const float a = values[id], b = values[top];
        if (a > b || (std::isnan(b) && !std::isnan(a))) top = id;
      }
      best->push_back(std::bit_cast<i32>(values[top]));
      best->push_back(top);
    }
  }
  OpRig rig_;
  OpStep step_;
  std::vector<SampleRow> rows_;
  int outputs_ = 0;
  TensorId arrived_;
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

// Rows that have no number to draw, some behind drafts that are right, end where that is; others live on.
inline void CheckNoNumber(const OpBackend& backend) {
  const std::vector<float> none(40, NAN);
  std::vector<float> three(40, NAN);
  three[3] = -5.0f;
  std::vector<SampleRow> rows;
  for (const SampleRow& row : {Sampled(none, 0, 0, 1.0f), Sampled(three, 0, 0, 1.0f), Sampled(none, 1, 5, 0.5f),
                               Sampled(none, 1, 0, 1.0f), Sampled(std::vector<float>(40, -INFINITY), 1, 0, 1.0f)}) {
    rows.push_back(row);
  }
  for (const i32 draft : {3, 4}) {  // right, so that the next token is looked at, and wrong
    rows.push_back(Sampled(three, 0, 0, 1.0f));
    rows.back().drafts = {draft, 9};
    rows.back().more = {none, three};
  }
  for (SampleRow& row : rows) row.slot.history_length = 3, row.slot.context_length = 2;
  SampleCase sample(backend, rows);
  const std::vector<StepResult> results = sample.Run();
  const std::vector<SlotState> slots = sample.Slots();
  const u32 count[] = {0, 1, 0, 0, 1, 1, 1};
  const bool ends[] = {true, false, true, true, false, true, false};
  const i32 token[] = {-7, 3, -7, -7, 0, 3, 3};
  for (int r = 0; r < 7; ++r) {
    INFO("row " << r);
    CHECK(results[r].count == count[r]);
    CHECK(results[r].finish == (ends[r] ? kSlotNoNumber : kSlotRunning));
    CHECK(slots[r].finish == results[r].finish);
    CHECK(slots[r].history_length == 3 + count[r]);
    CHECK((PaceOf(slots[r].pace, 1000) == kPaceEnded) == ends[r]);
    CHECK(sample.History(r)[3] == token[r]);
  }
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
      REQUIRE(result.count == 1);
      REQUIRE(result.tokens[0] >= 0);
      REQUIRE(result.tokens[0] < static_cast<int>(counts.size()));
      ++counts[result.tokens[0]];
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
