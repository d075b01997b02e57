// A second, smaller model that writes drafts for a runner's sequences ("the target's").
//
// It is a decoder like any other, with weights, KV memory, slots and launches of its own; what the two share
// makes one follow the other without the host:
//   * The history. A token that the draft model appends to a sequence lies where the target's step takes
//     its drafts from.
//   * Block numbers and block tables. KV of a position lies in the block of the same number in both
//     models' memory, so whatever happens to blocks (shared prefixes, preemption) happens to both.
//   * The stream. Steps of the two run in the order of submission: first the draft model's, then the target's
//     that checks what they wrote. Each tells the partner's slot how far the sequence is (ops/sample.h).
//
// A target's step is preceded by as many steps of the draft model as its longest row may carry drafts, at
// least one: the first takes every row, so that the draft model has KV of all that the target has.
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "serve/loaded_decoder.h"

namespace eventide {

// What a draft model uses of its target's.
struct DraftTarget {
  const Backend* backend = nullptr;
  const Decoder* decoder = nullptr;
  uint64_t slots = 0;   // SlotState[]
  uint64_t tables = 0;  // u32[slots][blocks_per_slot]
  uint32_t blocks_per_slot = 0;
};

class DraftModel {
 public:
  // What a draft model is built for, beside a target with these limits.
  static DecoderLimits LimitsBeside(DecoderLimits target, const ModelConfig& draft);

  // Refuses a model with another vocabulary.
  static absl::Status CheckFits(const ModelConfig& target, const ModelConfig& draft);

  // Of `options`, the limits are the target's. The target outlives the draft model.
  static absl::StatusOr<std::unique_ptr<DraftModel>> Create(const WeightSource& source,
                                                            const LoadOptions& options,
                                                            const DraftTarget& target);

  // `verifies`, about to be written to the target's slot, becomes one that the draft model drafts for.
  absl::Status Admit(uint32_t slot, SlotState* verifies);
  void Release(uint32_t slot) { slots_[slot].drafts = false; }
  // MegakernelRunner::SetContext: the last of `length` tokens is followed by drafts.
  absl::Status SetContext(uint32_t slot, uint32_t length);

  // Before the target's step with these rows; waited for after it.
  absl::Status Submit(std::span<const Row> rows);
  absl::Status Wait();
  // Of the steps waited for last, together; 0 where there were none or nobody asked for times.
  double LastStepsMs() const { return last_ms_; }

  const Decoder& decoder() const { return decoder_; }
  Executor& executor() { return *backend_.executor; }

 private:
  struct Slot {
    bool drafts = false;
    uint32_t max_length = 0;  // of the draft model's slot
    uint32_t prefilled = 0;   // tokens that rows of known length have brought, or the prefix cache
  };

  DraftModel(LoadedDecoder loaded, const DraftTarget& target)
      : decoder_(std::move(loaded.decoder)), backend_(std::move(loaded.backend)), target_(target) {}
  absl::Status Allocate();
  // The rows of the first step, then those of the others, most drafts first.
  struct Rows {
    std::vector<Row> all;
    size_t first = 0;  // of `all`, the first step's
    std::vector<uint32_t> later;  // rows of each later step: so many behind the first step's
  };
  Rows RowsFor(std::span<const Row> target_rows);
  StepHeader Header(uint64_t rows, size_t count) const;

  Decoder decoder_;
  Backend backend_;
  const DraftTarget target_;
  std::vector<Slot> slots_;
  Buffer states_, rows_, results_;
  std::deque<bool> flights_;  // whether there was anything to run
  double last_ms_ = 0;
};

}  // namespace eventide
