// Two runners of one model are given the same random steps (step_plan.h), and what they answer is held
// against each other: bit for bit, or as one storage type's arithmetic against another order of it.
#pragma once

#include <cmath>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "serve/megakernel_runner.h"
#include "tests/support/step_plan.h"

namespace eventide {

struct StepCampaignOptions {
  StepPlanOptions plan;
  int64_t steps = 100;
  // Logits and tokens are equal to the bit, and pairs of steps may be in flight. Else logits are close,
  // tokens are those of each runner's own logits, and the subject goes on with the reference's.
  bool exact = true;
};

struct StepCampaignResult {
  int64_t steps = 0, rows = 0, query_tokens = 0, outputs = 0, tokens = 0;
  int64_t distinct_shapes = 0;
  uint32_t max_context = 0, max_rows = 0;
  int64_t wrong = 0;   // exact: steps with another bit; else tokens that the own logits do not have
  int64_t flips = 0;   // not exact: tokens that differ
  double max_error = 0;  // of a logit, relative to the RMS of its position's logits
  double rms_error = 0;  // of all logits, relative to theirs
  std::string first;     // the first failure

  std::string Line() const {
    return absl::StrFormat(
        "steps %d shapes %d rows %d (at most %d) tokens %d context %d outputs %d sampled %d wrong %d "
        "flips %d rms %.2e max %.2e",
        steps, distinct_shapes, rows, max_rows, query_tokens, max_context, outputs, tokens, wrong,
        flips, rms_error, max_error);
  }
};

class StepCampaign {
 public:
  StepCampaign(MegakernelRunner* reference, MegakernelRunner* subject,
               const StepCampaignOptions& options)
      : options_(options),
        plan_(reference->info(), options.plan),
        lanes_{{reference, {}, {}}, {subject, {}, {}}},
        random_(options.plan.seed + 1) {
    EVT_CHECK(reference->info().num_blocks == subject->info().num_blocks);
  }

  // Ends early at the first failure.
  StepCampaignResult Run() {
    while (result_.steps < options_.steps && result_.first.empty()) {
      const PlannedStep step = plan_.Next(true);
      const bool pair = options_.exact && random_() % 4 == 0;
      if (!Submit(step)) break;
      if (!pair) {
        Finish(step, true);
        continue;
      }
      // The second is planned and submitted before anyone has seen the first one's tokens.
      const PlannedStep behind = plan_.Next(false);
      if (!Submit(behind)) break;
      Finish(step, false);
      if (result_.first.empty()) Finish(behind, true);
    }
    result_.distinct_shapes = static_cast<int64_t>(shapes_.size());
    if (scale2_ > 0) result_.rms_error = std::sqrt(error2_ / scale2_);
    // After a failure nothing is known of the runners.
    for (Lane& lane : lanes_) {
      if (!result_.first.empty()) break;
      for (const uint32_t slot : plan_.Live()) lane.runner->Release(slot);
    }
    return result_;
  }

 private:
  struct Lane {
    MegakernelRunner* runner;
    StepOutcome outcome;
    std::vector<float> logits;
  };

  void Fail(const std::string& what) {
    if (result_.first.empty())
      result_.first = absl::StrCat("seed ", options_.plan.seed, ", step ", result_.steps, ": ", what);
  }

  bool Submit(const PlannedStep& step) {
    std::vector<Row> rows;
    std::vector<BlockTableUpdate> updates;
    for (const PlannedRow& row : step.rows) rows.push_back(row.row);
    for (const PlannedBlocks& b : step.blocks) updates.push_back({b.slot, b.first, b.blocks});
    for (Lane& lane : lanes_) {
      for (const uint32_t slot : step.released) lane.runner->Release(slot);
      for (const PlannedAdmission& a : step.admitted) {
        SlotAdmission admission = a.admission;
        admission.tokens = a.tokens;
        if (absl::Status s = lane.runner->Admit(admission); !s.ok()) Fail(s.ToString());
      }
      if (absl::Status s = lane.runner->Submit({submitted_, rows, updates}); !s.ok())
        Fail(s.ToString());
    }
    ++submitted_;
    return result_.first.empty();
  }

  // `last`: nothing is in flight behind it, so that logits can be read.
  void Finish(const PlannedStep& step, bool last) {
    uint32_t outputs = 0;
    for (const PlannedRow& row : step.rows) outputs += row.outputs;
    const bool compare = last && step.has_logits && outputs > 0;
    for (Lane& lane : lanes_) {
      lane.outcome = lane.runner->Wait();
      if (!lane.outcome.status.ok()) return Fail(lane.outcome.status.ToString());
      lane.logits.clear();
      if (!compare) continue;
      auto logits = lane.runner->Logits(0, static_cast<int>(outputs));
      if (!logits.ok()) return Fail(logits.status().ToString());
      lane.logits = *std::move(logits);
    }
    Count(step);
    for (const Lane& lane : lanes_) CheckContract(step, lane);
    if (options_.exact) {
      CheckBits(step);
    } else if (compare) {
      CheckClose(step);
    }
    ++result_.steps;
  }

  void Count(const PlannedStep& step) {
    uint64_t shape = step.rows.size();
    for (const PlannedRow& row : step.rows) {
      result_.query_tokens += row.query;
      result_.outputs += row.outputs;
      result_.max_context = std::max(result_.max_context, row.context);
      shape = (shape ^ (uint64_t{row.context} << 16 | row.query)) * 0x100000001b3u;
    }
    shapes_.insert(shape);
    result_.rows += static_cast<int64_t>(step.rows.size());
    result_.max_rows = std::max(result_.max_rows, static_cast<uint32_t>(step.rows.size()));
  }

  // What follows from the lengths alone.
  void CheckContract(const PlannedStep& step, const Lane& lane) {
    if (lane.outcome.rows.size() != step.rows.size()) return Fail("another number of results");
    for (size_t i = 0; i < step.rows.size(); ++i) {
      const PlannedRow& planned = step.rows[i];
      const RowResult& got = lane.outcome.rows[i];
      if (got.slot == planned.row.slot && got.query_length == planned.query &&
          got.tokens.size() == (planned.appends ? 1 : 0) && got.finished == planned.finishes) {
        continue;
      }
      Fail(absl::StrFormat("row %d of %s: slot %d, %d tokens, %d appended, finished %d; planned were "
                           "slot %d, %d, %d, %d",
                           i, lane.runner->device(), got.slot, got.query_length, got.tokens.size(),
                           got.finished, planned.row.slot, planned.query, planned.appends,
                           planned.finishes));
    }
  }

  void CheckBits(const PlannedStep& step) {
    const Lane &a = lanes_[0], &b = lanes_[1];
    std::string what;
    for (size_t i = 0; i < step.rows.size() && what.empty(); ++i) {
      result_.tokens += static_cast<int64_t>(a.outcome.rows[i].tokens.size());
      if (a.outcome.rows[i].tokens != b.outcome.rows[i].tokens)
        what = absl::StrCat("another token in row ", i, " of ", step.rows.size());
    }
    if (a.logits.size() != b.logits.size()) what = "another number of logits";
    for (size_t i = 0; i < a.logits.size() && what.empty(); ++i) {
      if (std::memcmp(&a.logits[i], &b.logits[i], sizeof(float)) == 0) continue;
      const size_t vocab = a.runner->info().vocab_size;
      what = absl::StrCat("logit ", i % vocab, " of output ", i / vocab, " of ",
                          a.logits.size() / vocab, " is ", b.logits[i], ", not ", a.logits[i]);
    }
    if (what.empty()) return;
    ++result_.wrong;
    Fail(what);
  }

  static TokenId Greedy(const float* logits, size_t vocab) {
    return static_cast<TokenId>(std::max_element(logits, logits + vocab) - logits);
  }

  void CheckClose(const PlannedStep& step) {
    const size_t vocab = lanes_[0].runner->info().vocab_size;
    size_t output = 0;
    for (size_t i = 0; i < step.rows.size(); ++i) {
      const PlannedRow& row = step.rows[i];
      for (uint32_t o = 0; o < row.outputs; ++o) AddError((output + o) * vocab, vocab);
      if (row.appends) {
        const size_t at = (output + row.outputs - 1) * vocab;
        for (Lane& lane : lanes_) {
          if (lane.outcome.rows[i].tokens[0] == Greedy(&lane.logits[at], vocab)) continue;
          ++result_.wrong;
          Fail(absl::StrCat("row ", i, " of ", lane.runner->device(),
                            " appends a token that is not its logits' greatest"));
        }
        CheckToken(row, i);
      }
      output += row.outputs;
    }
  }

  void AddError(size_t at, size_t vocab) {
    double error2 = 0, scale2 = 0, worst = 0;
    for (size_t v = at; v < at + vocab; ++v) {
      const double expected = lanes_[0].logits[v];
      const double error = std::fabs(lanes_[1].logits[v] - expected);
      if (!(error < INFINITY)) return Fail("a logit that is no number");
      worst = std::max(worst, error);
      error2 += error * error;
      scale2 += expected * expected;
    }
    error2_ += error2;
    scale2_ += scale2;
    if (scale2 > 0)
      result_.max_error =
          std::max(result_.max_error, worst / std::sqrt(scale2 / static_cast<double>(vocab)));
  }

  // Teacher-forced: a flip does not make the rest of the sequence incomparable. By their logits' errors
  // the two may differ only where the reference's margin is less than twice the error of that position;
  // how often that may be, and how large the errors, is for the caller to bound.
  void CheckToken(const PlannedRow& row, size_t i) {
    ++result_.tokens;
    const TokenId wanted = lanes_[0].outcome.rows[i].tokens[0];
    if (lanes_[1].outcome.rows[i].tokens[0] == wanted) return;
    ++result_.flips;
    if (row.finishes) return;
    const absl::Status set = lanes_[1].runner->SetContext(row.row.slot, row.context, {&wanted, 1});
    if (!set.ok()) Fail(set.ToString());
  }

  const StepCampaignOptions options_;
  StepPlan plan_;
  Lane lanes_[2];
  std::mt19937_64 random_;
  StepCampaignResult result_;
  std::set<uint64_t> shapes_;
  double error2_ = 0, scale2_ = 0;
  uint64_t submitted_ = 0;
};

// A runner for campaigns; null and *why on failure.
struct CampaignRunnerOptions {
  std::string device = "cpu", policy = "static";
  int workers = 0;
  DType storage = DType::kBF16;
  int max_rows = 64, max_tokens = 512, max_outputs = 512;
  int max_model_len = 2048;
  StepPlanOptions plan;
};

inline absl::StatusOr<std::unique_ptr<MegakernelRunner>> MakeCampaignRunner(
    const WeightSource& source, const CampaignRunnerOptions& setup) {
  RunnerOptions options;
  options.backend.device = setup.device;
  options.backend.policy = setup.policy;
  options.backend.workers = setup.workers;
  options.storage = setup.storage;
  options.pack_threads = 16;
  options.limits.max_rows = setup.max_rows;
  options.limits.max_tokens = setup.max_tokens;
  options.limits.max_outputs = setup.max_outputs;
  options.limits.max_model_len = setup.max_model_len;
  options.limits.num_blocks =
      StepPlanBlocks(setup.plan, setup.max_rows, options.limits.block_size);
  return MegakernelRunner::Create(source, options);
}

}  // namespace eventide
