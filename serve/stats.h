// What the engine counts, and percentiles of what it samples.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "serve/draft_stats.h"

namespace eventide {

// Counts distinct step shapes: (rows, tokens, sorted query lengths, sorted context lengths). A
// shape is kept as a 128-bit hash; two of 10^9 shapes collide with probability below 10^-20.
class ShapeCounter {
 public:
  struct RowShape {
    uint32_t query_length;
    uint64_t context_length;  // with this step's tokens
  };
  void Add(std::span<const RowShape> rows);
  uint64_t count() const { return seen_.size(); }

 private:
  absl::flat_hash_set<std::pair<uint64_t, uint64_t>> seen_;
};

struct EngineStats {
  // Now.
  uint64_t queued = 0;   // requests that have no slot
  uint64_t running = 0;  // requests that have one and no outcome yet
  uint64_t kv_blocks = 0;
  uint64_t kv_blocks_used = 0;    // held by requests
  uint64_t kv_blocks_cached = 0;  // held by nobody, kept for their prefixes until others need them
  // Since the start.
  uint64_t accepted = 0;
  uint64_t refused = 0;  // by AddRequest: they have no outcome
  uint64_t finished_stop = 0;
  uint64_t finished_length = 0;
  uint64_t finished_abort = 0;
  uint64_t finished_error = 0;
  uint64_t prompt_tokens = 0;  // of accepted requests
  uint64_t output_tokens = 0;  // handed out
  uint64_t computed_tokens =
      0;  // query tokens of retired steps: prefill, decode, drafts, recomputation
  // Of requests when they are first admitted: prompt tokens, and of these found in the prefix
  // cache.
  uint64_t prefix_query_tokens = 0;
  uint64_t prefix_hit_tokens = 0;
  uint64_t resumed_hit_tokens = 0;  // found when a preempted request came back
  uint64_t evicted_blocks = 0;      // of the prefix cache, for others
  uint64_t preemptions = 0;
  uint64_t steps = 0;  // submitted
  uint64_t failed_steps = 0;
  // By the runner's clock (RunnerInfo::clock): in steps; and between steps while requests waited or ran.
  double step_seconds = 0;
  double idle_seconds = 0;
  DraftStats drafts;
  uint64_t max_batch = 0;        // most rows in a step
  uint64_t distinct_shapes = 0;  // of retired steps

  double kv_usage() const {
    return kv_blocks == 0 ? 0
                          : static_cast<double>(kv_blocks_used) / static_cast<double>(kv_blocks);
  }
};

// The nearest-rank percentile of unsorted samples, `percent` in [0, 100]; 0 without samples.
double Percentile(std::vector<double> samples, double percent);

}  // namespace eventide
