// Sequences that a runner takes through steps of one's own choice, with the logits of every token.
#pragma once

#include <vector>

#include "serve/megakernel_runner.h"
#include "serve/stats.h"
#include "stress/context.h"

namespace eventide {

struct SequencePlan {
  std::vector<TokenId> prompt;
  int out = 0;  // tokens to generate behind it
  uint64_t key = 0;
  float temperature = 0;
  std::vector<BlockId> blocks;
};

struct SequenceResult {
  std::vector<float>
      logits;  // of each token of the prompt, then of each generated one but the last
  std::vector<TokenId> tokens;
};

class SequenceSteps {
 public:
  // Slot i has plan i. `faults` may be null.
  static absl::StatusOr<std::unique_ptr<SequenceSteps>> Admit(MegakernelRunner* runner,
                                                              std::vector<SequencePlan> plans,
                                                              const StressFaults* faults);
  ~SequenceSteps();
  SequenceSteps(const SequenceSteps&) = delete;

  bool Done(size_t i) const { return done_[i]; }
  bool AllDone() const;
  // Tokens of the prompt that no step has taken.
  int PromptLeft(size_t i) const;
  // One step: of each sequence `lengths[i]` prompt tokens, or where none are left, one token that
  // the device knows; 0: not in the step.
  absl::Status Step(const std::vector<int>& lengths);

  const SequenceResult& result(size_t i) const { return results_[i]; }
  // Tokens of a sequence that have KV.
  int64_t Context(size_t i) const { return context_[i]; }
  uint64_t steps() const { return steps_; }
  uint64_t shapes() const { return shapes_.count(); }

 private:
  SequenceSteps(MegakernelRunner* runner, std::vector<SequencePlan> plans,
                const StressFaults* faults);
  absl::Status Take(const std::vector<Row>& rows, const StepOutcome& outcome);

  MegakernelRunner* runner_;
  const std::vector<SequencePlan> plans_;
  const StressFaults* faults_;
  size_t admitted_ = 0;
  std::vector<SequenceResult> results_;
  std::vector<int64_t> context_;
  std::vector<bool> done_;
  ShapeCounter shapes_;
  uint64_t steps_ = 0;
};

}  // namespace eventide
