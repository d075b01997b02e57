// Runs the sample op over given logits: one row per case, tables as plan and the head would leave
// them.
#pragma once

#include <vector>

#include "ops/sample.h"
#include "tests/ops/op_rig.h"

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
    const int stride = RoundUp(vocab, 32), tiles = CeilDiv(vocab, 32);
    const int n = static_cast<int>(rows_.size());
    std::vector<float> logits(static_cast<size_t>(n) * stride,
                              NAN);  // beyond the vocabulary: poison
    std::vector<i32> best(static_cast<size_t>(n) * tiles * 2), row_output(n);
    for (int r = 0; r < n; ++r) {
      row_output[r] = rows_[r].sampling & kRowSample ? r : -1;
      std::copy(rows_[r].logits.begin(), rows_[r].logits.end(), logits.begin() + r * stride);
      for (int tile = 0; tile < tiles; ++tile) {
        int top = tile * 32;
        for (int id = top; id < std::min(vocab, tile * 32 + 32); ++id) {
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

}  // namespace eventide
