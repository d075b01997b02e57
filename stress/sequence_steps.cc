#include "stress/sequence_steps.h"

#include <algorithm>

namespace eventide {

SequenceSteps::SequenceSteps(MegakernelRunner* runner, std::vector<SequencePlan> plans,
                             const StressFaults* faults)
    : runner_(runner),
      plans_(std::move(plans)),
      faults_(faults),
      results_(plans_.size()),
      context_(plans_.size(), 0),
      done_(plans_.size(), false) {}

absl::StatusOr<std::unique_ptr<SequenceSteps>> SequenceSteps::Admit(MegakernelRunner* runner,
                                                                    std::vector<SequencePlan> plans,
                                                                    const StressFaults* faults) {
  std::unique_ptr<SequenceSteps> steps(new SequenceSteps(runner, std::move(plans), faults));
  for (const SequencePlan& plan : steps->plans_) {
    SlotAdmission admission;
    admission.slot = static_cast<uint32_t>(steps->admitted_);
    admission.tokens = plan.prompt;
    admission.prompt_length = static_cast<uint32_t>(plan.prompt.size());
    admission.max_length =
        static_cast<uint32_t>(plan.prompt.size()) + static_cast<uint32_t>(plan.out);
    admission.key = plan.key;
    admission.temperature = plan.temperature;
    RETURN_IF_ERROR(runner->Admit(admission));
    ++steps->admitted_;
  }
  return steps;
}

SequenceSteps::~SequenceSteps() {
  for (size_t slot = 0; slot < admitted_; ++slot) runner_->Release(static_cast<uint32_t>(slot));
}

bool SequenceSteps::AllDone() const {
  return std::all_of(done_.begin(), done_.end(), [](bool done) { return done; });
}

int SequenceSteps::PromptLeft(size_t i) const {
  return std::max(0, static_cast<int>(plans_[i].prompt.size()) - static_cast<int>(context_[i]));
}

absl::Status SequenceSteps::Step(const std::vector<int>& lengths) {
  std::vector<Row> rows;
  std::vector<BlockTableUpdate> updates;
  std::vector<ShapeCounter::RowShape> shape;
  for (uint32_t slot = 0; slot < lengths.size(); ++slot) {
    if (lengths[slot] == 0 || done_[slot]) continue;
    const int left = PromptLeft(slot);
    const uint32_t length = static_cast<uint32_t>(std::min(lengths[slot], std::max(left, 1)));
    if (left == 0) {
      rows.push_back({slot, kDeviceKnows, 0, kRowSample});
    } else {
      const bool last = static_cast<int>(length) == left;
      rows.push_back({slot, length, 0, last ? kRowAllLogits | kRowSample : kRowAllLogits});
    }
    shape.push_back({length, static_cast<uint64_t>(context_[slot]) + length});
    if (context_[slot] == 0) updates.push_back({slot, 0, plans_[slot].blocks});
  }
  shapes_.Add(shape);
  RETURN_IF_ERROR(runner_->Submit({steps_++, rows, updates}));
  const StepOutcome outcome = runner_->Wait();
  RETURN_IF_ERROR(outcome.status);
  return Take(rows, outcome);
}

absl::Status SequenceSteps::Take(const std::vector<Row>& rows, const StepOutcome& outcome) {
  int outputs = 0;
  for (const Row& row : rows) {
    outputs += row.query_length == kDeviceKnows ? 1 : static_cast<int>(row.query_length);
  }
  ASSIGN_OR_RETURN(std::vector<float> logits, runner_->Logits(0, outputs));
  if (faults_ != nullptr && faults_->logits) {
    faults_->logits(static_cast<int>(rows.size()), &logits);
  }
  const size_t vocab = runner_->info().vocab_size;
  auto at = logits.begin();
  for (size_t i = 0; i < rows.size(); ++i) {
    const uint32_t slot = rows[i].slot;
    const RowResult& result = outcome.rows[i];
    const bool decode = rows[i].query_length == kDeviceKnows;
    const uint32_t length = decode ? 1 : rows[i].query_length;
    if (result.slot != slot || result.query_length != length) {
      return absl::InternalError(absl::StrCat("row ", i, " of slot ", slot, " took ",
                                              result.query_length, " tokens instead of ", length));
    }
    const auto end = at + static_cast<long>(length * vocab);
    results_[slot].logits.insert(results_[slot].logits.end(), at, end);
    at = end;
    context_[slot] += length;
    const bool sampled = (rows[i].sampling & kRowSample) != 0;
    if (result.tokens.size() != (sampled ? 1 : 0)) {
      return absl::InternalError(
          absl::StrCat("row ", i, " of slot ", slot, " brought ", result.tokens.size(), " tokens"));
    }
    results_[slot].tokens.insert(results_[slot].tokens.end(), result.tokens.begin(),
                                 result.tokens.end());
    const bool all = static_cast<int>(results_[slot].tokens.size()) == plans_[slot].out;
    if (result.finished != all) {
      return absl::InternalError(absl::StrCat("slot ", slot, " has ", results_[slot].tokens.size(),
                                              " of ", plans_[slot].out, " tokens and is",
                                              result.finished ? "" : " not", " finished"));
    }
    done_[slot] = all;
  }
  return absl::OkStatus();
}

}  // namespace eventide
