// Times decode steps of one loaded model for any batch and context, without a prefill: slots are
// admitted with a context that is said to be cached, and the KV memory holds random numbers.
// Batches and contexts share one program; nothing is compiled between them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/routes.h"
#include "runtime/timeline.h"
#include "serve/draft_stats.h"
#include "serve/megakernel_runner.h"

namespace eventide {

struct DecodeShape {
  int batch = 1;
  int context = 512;  // tokens with KV; at a model's very end a few fewer (DecodeBench::Cached)
};

struct DecodeBenchOptions {
  BackendOptions backend;
  DType storage = DType::kBF16;
  std::vector<DecodeShape> shapes;  // all that will be measured
  int tokens_per_row = 1;
  // Besides, of a row with one token, verified on the device: random ones, or the draft model's.
  int drafts = 0;
  const WeightSource* draft_model = nullptr;  // needed by Create and for sizes
  DType draft_storage = DType::kBF16;
  int block_size = 16;
  uint64_t seed = 0;
  int route_draws = 0;  // DecoderLimits: lines of routes that SetRoutes gives
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

struct DecodeTimes {
  Percentiles ms;        // of steps on their device, a draft model's included
  double wall_ms = 0;    // per step, all in: two queued, results read, rows continued as served
  double submit_us = 0;  // the host's work to queue one, median
  int64_t bytes = 0;     // DecodeBytes, of a draft model once for every draft
};

// What a step cannot avoid reading: the weights of all linears and of the head once, of experts those that
// tokens went to, and the KV of `cached` tokens of every row (of windowed layers, the window's).
int64_t DecodeWeightBytes(const ModelConfig& config, DType storage);  // with all experts
int64_t ExpertBytes(const ModelConfig& config, DType storage);        // of one expert of one layer
int64_t DecodeKvBytes(const ModelConfig& config, DType storage, int cached);

// KV memory that a shape needs, in bytes.
int64_t DecodeKvMemory(const ModelConfig& config, const DecodeBenchOptions& options,
                       const DecodeShape& shape);

class DecodeBench {
 public:
  static absl::StatusOr<std::unique_ptr<DecodeBench>> Create(const WeightSource& source,
                                                             const DecodeBenchOptions& options);

  // `warmup` steps, at most 64 for wall_ms, then `steps` timed ones; each but those for wall_ms
  // with fresh random last tokens. `done` counts all of them. The shape is one of the options'.
  absl::StatusOr<DecodeTimes> Measure(const DecodeShape& shape, int steps, int warmup,
                                      const std::function<void(int done)>& progress = nullptr);
  // The last step of the last Measure; with BackendOptions::timeline_tasks only.
  absl::StatusOr<Timeline> LastTimeline();

  // Lines for the next Measure, as many as options.route_draws.
  absl::Status SetRoutes(const Routes& routes);
  // Where the tokens of the last Measure's last step went: a line for each.
  absl::StatusOr<Routes> LastRoutes();

  // First tokens of the last Measure's last step, one per row: what its bits are compared by.
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

  DecodeBench() = default;
  absl::Status FillCache(const Decoder& decoder, Executor* executor);
  absl::Status Admit(const DecodeShape& shape);
  absl::Status RunSteps(const DecodeShape& shape, const Run& run, std::vector<double>* ms);
  absl::Status SubmitOne(const DecodeShape& shape, bool refresh);
  absl::Status WaitOne(std::vector<double>* ms);
  std::vector<TokenId> RandomTokens(int count);

  DecodeBenchOptions options_;
  std::unique_ptr<MegakernelRunner> runner_;
  uint64_t step_ = 0, random_ = 0;
  int admitted_ = 0;
  std::vector<std::vector<BlockId>> blocks_;  // of the admitted slots
  bool tables_written_ = false;
  std::vector<double> submit_us_;
  std::vector<TokenId> last_tokens_;
  DraftStats drafts_;
  DecodeShape last_;
};

}  // namespace eventide
