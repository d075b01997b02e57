#include "serve/score.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "core/status.h"

namespace eventide {
namespace {

absl::Status CheckScorable(const RunnerInfo& info, size_t tokens, int top) {
  const uint64_t room = std::min<uint64_t>(info.max_model_len, info.num_blocks * info.block_size);
  if (tokens == 0) return absl::InvalidArgumentError("there are no tokens to score");
  if (tokens > room) {
    return absl::InvalidArgumentError(absl::StrCat(
        tokens, " tokens exceed the ", room, " that one sequence may have (--max-model-len)"));
  }
  if (top < 0 || static_cast<uint32_t>(top) > info.vocab_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("top is ", top, "; it must be from 0 to the vocabulary's ", info.vocab_size));
  }
  return absl::OkStatus();
}

// Gives the slot back on every way out.
class AdmittedSlot {
 public:
  explicit AdmittedSlot(StepRunner* runner) : runner_(runner) {}
  ~AdmittedSlot() { runner_->Release(0); }
  AdmittedSlot(const AdmittedSlot&) = delete;
  AdmittedSlot& operator=(const AdmittedSlot&) = delete;

 private:
  StepRunner* runner_;
};

// NaN stays NaN.
double LogProbability(float logit, double normaliser) { return std::max(double{logit} - normaliser, kLogOfZero); }

}  // namespace

TokenScore ScoreLogits(std::span<const float> logits, TokenId token, int top) {
  const float largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float logit : logits) sum += std::exp(double{logit} - double{largest});
  const double normaliser = double{largest} + std::log(sum);
  TokenScore score;
  score.logprob = LogProbability(logits[token], normaliser);
  if (top == 0 || std::isnan(normaliser)) return score;
  std::vector<TokenId> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::partial_sort(ids.begin(), ids.begin() + top, ids.end(), [&](TokenId a, TokenId b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  });
  for (int i = 0; i < top; ++i) score.top.push_back({ids[i], LogProbability(logits[ids[i]], normaliser)});
  return score;
}

absl::StatusOr<std::vector<TokenScore>> ScoreTokens(MegakernelRunner* runner,
                                                    std::span<const TokenId> tokens, int top) {
  const RunnerInfo& info = runner->info();
  RETURN_IF_ERROR(CheckScorable(info, tokens.size(), top));
  SlotAdmission admission;
  admission.tokens = tokens;
  admission.prompt_length = static_cast<uint32_t>(tokens.size());
  admission.max_length = static_cast<uint32_t>(tokens.size());
  RETURN_IF_ERROR(runner->Admit(admission));
  const AdmittedSlot slot(runner);
  std::vector<BlockId> blocks((tokens.size() + info.block_size - 1) / info.block_size);
  std::iota(blocks.begin(), blocks.end(), 0u);
  const size_t most =
      std::min<size_t>(info.max_batched_tokens, runner->decoder().limits.max_outputs);
  std::vector<TokenScore> scores;
  for (size_t first = 0; first < tokens.size(); first += most) {
    const size_t count = std::min(most, tokens.size() - first);
    const Row row{0, static_cast<u32>(count), 0, kRowAllLogits};
    const BlockTableUpdate update{0, 0, blocks};
    StepInput input;
    input.rows = {&row, 1};
    if (first == 0) input.block_updates = {&update, 1};
    RETURN_IF_ERROR(runner->Submit(input));
    RETURN_IF_ERROR(runner->Wait().status);
    ASSIGN_OR_RETURN(const std::vector<float> logits, runner->Logits(0, static_cast<int>(count)));
    const size_t vocab = info.vocab_size;
    for (size_t i = 0; i < count && first + i + 1 < tokens.size(); ++i) {
      const std::span<const float> position(logits.data() + i * vocab, vocab);
      scores.push_back(ScoreLogits(position, tokens[first + i + 1], top));
      if (std::isnan(scores.back().logprob)) return NoNumbers(absl::StrCat("behind ", first + i + 1, " tokens"));
    }
  }
  return scores;
}

}  // namespace eventide
