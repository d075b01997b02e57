// Runs the serving core's steps as launches of a decoder's program: owns the executor, the
// slots' states and histories, block tables, and what two steps in flight need twice.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "serve/draft_model.h"
#include "serve/loaded_decoder.h"
#include "serve/step.h"

namespace eventide {

// Of the limits, num_blocks 0: as many as max_rows sequences of max_model_len need.
struct RunnerOptions : LoadOptions {
  // Drafts for requests that want drafts (SlotAdmission::draft_tokens), instead of looking back. Needed by
  // Create only.
  const WeightSource* draft_model = nullptr;
  DType draft_storage = DType::kF32;
  // Of early exit, where limits.exit_first > 0: the least cosine with which tokens leave (ops/exit_test.h).
  // A draft model's never leave.
  float exit_threshold = 2.0f;
};

class MegakernelRunner : public StepRunner {
 public:
  // `source` is read here only.
  static absl::StatusOr<std::unique_ptr<MegakernelRunner>> Create(const WeightSource& source,
                                                                  const RunnerOptions& options);

  const RunnerInfo& info() const override { return info_; }
  absl::Status Admit(const SlotAdmission& admission) override;
  absl::Status Submit(const StepInput& input) override;
  std::optional<StepOutcome> Poll() override;
  StepOutcome Wait() override;
  void Release(uint32_t slot) override;
  absl::StatusOr<std::vector<uint64_t>> TokensLeft() override;
  uint64_t compilations() const override { return CountBackends().compilations; }

  // For measurements and tests: from the next submitted step on, the running sequence of an admitted
  // slot has `context` tokens with KV and then `tokens`, which are what that step takes, and `drafts`
  // besides where its row may carry them. Steps in flight keep what they have.
  absl::Status SetContext(uint32_t slot, uint32_t context, std::span<const TokenId> tokens,
                          std::span<const TokenId> drafts = {});

  // Logits of `count` outputs of the step that was waited for last, while no other is in flight:
  // rows in order, one output for a kRowSample row, one per token for a kRowAllLogits row.
  // [count][vocab_size].
  absl::StatusOr<std::vector<float>> Logits(int first, int count);

  // Early exit from the next submitted step on: one threshold for each layer.
  absl::Status SetExitThresholds(std::span<const float> thresholds);
  // Of the step that was waited for last: how many of its tokens each layer computed.
  absl::StatusOr<std::vector<int>> TokensOfLayers();

  const Decoder& decoder() const { return decoder_; }
  Executor& executor() { return *backend_.executor; }
  const std::string& device() const { return backend_.device; }
  const Backend& backend() const { return backend_; }
  const DraftModel* draft_model() const { return draft_model_.get(); }
  DraftModel* draft_model() { return draft_model_.get(); }
  // Milliseconds that the step waited for last took on its device, its draft model's steps included; and for
  // which nothing ran before it (Executor::LastGapMs).
  double LastStepMs() const;
  double LastGapMs() const;

 private:
  struct Flight {
    uint64_t step = 0;
    uint64_t bank = 0;  // which of the two row and result buffers
    std::vector<Row> rows;
  };

  explicit MegakernelRunner(LoadedDecoder loaded)
      : decoder_(std::move(loaded.decoder)), backend_(std::move(loaded.backend)) {}
  absl::Status Allocate(bool time_steps);
  absl::Status CheckInput(const StepInput& input) const;
  absl::Status WriteTables(const StepInput& input);
  absl::Status ReadResults(const Flight& flight, std::vector<RowResult>* rows);

  Decoder decoder_;
  Backend backend_;
  RunnerInfo info_;
  uint32_t blocks_per_slot_ = 0;
  Buffer slots_, history_, tables_, rows_[2], results_[2];
  std::vector<bool> admitted_;
  std::deque<Flight> flights_;
  uint64_t submitted_ = 0;
  std::unique_ptr<DraftModel> draft_model_;  // last: gone before what it shares
};

}  // namespace eventide
