// Times steps of one loaded model, of any decode rows and a chunk of prefill, without what came
// before them: slots are admitted with a context that is said to be cached, and the KV memory holds
// random numbers. All shapes share one program; nothing is compiled between them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/routes.h"
#include "runtime/timeline.h"
#include "serve/draft_stats.h"
#include "serve/megakernel_runner.h"
#include "serve/step_cost.h"

namespace eventide {

struct StepBenchOptions {
  BackendOptions backend;
  DType storage = DType::kBF16;
  std::vector<StepShape> shapes;  // all that will be measured
  int tokens_per_row = 1;         // of a decode row
  // Besides, of a row with one token, verified on the device: random ones, or the draft model's.
  int drafts = 0;
  const WeightSource* draft_model = nullptr;  // needed by Create and for sizes
  DType draft_storage = DType::kBF16;
  int block_size = 16;
  uint64_t seed = 0;
  int route_draws = 0;                 // DecoderLimits: lines of routes that SetRoutes gives
  int exit_first = 0, exit_every = 1;  // DecoderLimits
  float exit_threshold = 2.0f;         // RunnerOptions
  int pack_threads = 2;
  std::function<void(int64_t done, int64_t total)> pack_progress;
};

struct Percentiles {
  double p5 = 0, p50 = 0, p95 = 0;
};
// Nearest rank; zeros for no values.
Percentiles PercentilesOf(std::vector<double> values);

struct StepTimes {
  Percentiles ms;        // of steps on their device, a draft model's included
  double wall_ms = 0;    // per step, all in: two queued, results read, rows continued as served
  double submit_us = 0;  // the host's work to queue one, median
  // Weights once, of experts those that tokens went to, and the KV of every row; of a draft model
  // once for every draft.
  int64_t bytes = 0;
  StepFlops flops;  // the draft model's left out
};

// Positions of the model that a chunk leaves free: it never continues, but its token must not end
// the row.
inline constexpr int kChunkRoom = 2;

struct StepCounts {
  int steps = 100;   // timed
  int warmup = 10;   // before them
  bool wall = true;  // besides, at most 64 for StepTimes::wall_ms
};

// KV memory that a shape needs, in bytes.
int64_t StepKvMemory(const ModelConfig& config, const StepBenchOptions& options,
                     const StepShape& shape);

class StepBench {
 public:
  static absl::StatusOr<std::unique_ptr<StepBench>> Create(const WeightSource& source,
                                                           const StepBenchOptions& options);

  // Steps to warm up, those for wall_ms, then the timed ones; each but those for wall_ms with fresh
  // random tokens. `done` counts all of them. The shape is one of the options'.
  absl::StatusOr<StepTimes> Measure(const StepShape& shape, const StepCounts& counts,
                                    const std::function<void(int done)>& progress = nullptr);
  // The last step of the last Measure; with BackendOptions::timeline_tasks only.
  absl::StatusOr<Timeline> LastTimeline();

  // Lines for the next Measure, as many as options.route_draws.
  absl::Status SetRoutes(const Routes& routes);
  // Where the tokens of the last Measure's last step went: a line for each.
  absl::StatusOr<Routes> LastRoutes();

  // First tokens of the last Measure's last step, one per row, the chunk's last: what its bits are
  // compared by.
  const std::vector<TokenId>& last_tokens() const { return last_tokens_; }
  // Of the last Measure's timed steps.
  const DraftStats& drafts() const { return drafts_; }
  MegakernelRunner& runner() { return *runner_; }

  // Tokens with KV that stand for a context: it must leave room for a row's tokens and one more.
  static int Cached(const ModelConfig& config, int row_tokens, int context);

 private:
  struct Run {
    int steps = 0;
    int refresh = 1;  // every so many steps, contexts are put back and last tokens drawn anew
    int done = 0;     // steps before this run
    std::function<void(int done)> progress;
  };

  StepBench() = default;
  absl::Status FillCache(const Decoder& decoder, Executor* executor);
  absl::Status Admit(const StepShape& shape);
  absl::Status AdmitSlot(uint32_t slot, int cached, int tokens);
  absl::Status RunSteps(const StepShape& shape, const Run& run, std::vector<double>* ms);
  // New random tokens behind the context of a slot.
  absl::Status Refresh(uint32_t slot, int cached, int tokens);
  absl::Status SubmitOne(const StepShape& shape, bool refresh);
  absl::StatusOr<int64_t> BytesOf(const StepShape& shape);
  absl::Status WaitOne(std::vector<double>* ms);
  std::vector<TokenId> RandomTokens(int count);

  StepBenchOptions options_;
  std::unique_ptr<MegakernelRunner> runner_;
  uint64_t step_ = 0, random_ = 0;
  int admitted_ = 0;
  std::vector<std::vector<BlockId>> blocks_;  // of the admitted slots
  bool tables_written_ = false;
  std::vector<double> submit_us_;
  std::vector<TokenId> last_tokens_;
  DraftStats drafts_;
  StepShape last_;
};

}  // namespace eventide
