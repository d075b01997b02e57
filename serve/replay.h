// Runs a trace through an engine and reports what happened, in the words of `eventide replay
// --json`.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "serve/engine.h"
#include "serve/exit_stats.h"
#include "serve/trace.h"

namespace eventide {

struct ReplayProgress {
  uint64_t total = 0;  // requests of the trace, and those to be run again
  uint64_t ended = 0;  // with any outcome, or refused
  uint64_t output_tokens = 0;
  uint64_t running = 0;
  uint64_t queued = 0;
  double seconds = 0;
};

struct ReplayOptions {
  // Open loop: request i arrives at its time in the trace times this (0.5: twice as fast; 0: all at
  // once).
  double time_scale = 1;
  // Above 0: trace times are ignored, and so many requests are kept going.
  uint64_t closed_loop = 0;
  bool priorities = false;  // the trace's; the engine's scheduling policy must be kPriority
  // So many requests, spread over the trace, are run again afterwards, one at a time: company must not have changed
  // their tokens. Nothing of that is in the result's times and counts.
  uint64_t verify = 0;
  // Of every request; max_tokens comes from the trace.
  SamplingParams sampling = {.ignore_eos = true};
  std::function<void(const ReplayProgress&)> progress;  // after each step
  std::function<void(const RequestOutput&)> on_output;  // of any request; ids are "trace-<index>"
  // Asked before each step: true admits nothing more and cancels what is going.
  std::function<bool()> stop;
};

// What became of one request, from its outputs, for those who want one record of each: kError for
// one that was refused.
class ReplayRecords {
 public:
  // One JSON object without a line's end: id, tokens, finish_reason, ttft_ms, tpot_ms (null without
  // such tokens), and error where it failed.
  using Sink = std::function<void(const std::string&)>;
  explicit ReplayRecords(Sink sink) : sink_(std::move(sink)) {}
  // For ReplayOptions::on_output. Requests come in the order in which they end.
  void Take(const RequestOutput& output);

 private:
  Sink sink_;
  absl::flat_hash_map<std::string, std::vector<TokenId>> tokens_;  // of requests without an outcome
};

struct Percentiles {
  double p50 = 0, p90 = 0, p99 = 0;
};

struct ReplayResult {
  uint64_t requests = 0;
  uint64_t completed = 0;  // with "stop" or "length"
  uint64_t failed = 0;     // any other outcome, or refused
  uint64_t cancelled = 0;  // by ReplayOptions::stop, or not admitted because of it
  uint64_t prompt_tokens = 0;
  uint64_t output_tokens = 0;
  double seconds = 0;
  double output_tokens_per_second = 0;
  Percentiles ttft_ms;  // first token since arrival; of completed requests
  Percentiles tpot_ms;  // per token after the first
  uint64_t steps = 0;
  uint64_t distinct_shapes = 0;
  uint64_t compilations = 0;              // in this process
  uint64_t compilations_after_ready = 0;  // during the replay
  uint64_t max_batch = 0;
  uint64_t preemptions = 0;
  uint64_t prefix_hit_tokens = 0;
  // While requests waited or ran: in steps, and between them, by whose clock ("gpu", "cpu"; empty: nobody's).
  std::string clock;
  double step_seconds = 0, idle_seconds = 0;
  double idle_share() const;
  bool speculates = false;
  DraftStats drafts;        // in the JSON where the engine speculates
  ExitStats exits;          // in the JSON where tokens may leave early
  std::string first_error;  // of the first failed request; not in the JSON
  uint64_t kv_blocks_held = 0;  // by requests when all have ended: 0
  // Of ReplayOptions::verify: run again to their end, and those of them whose tokens were others.
  uint64_t verified = 0, differing = 0;
  std::string first_difference;  // not in the JSON
};

// The trace fits the engine already (FitTrace). The engine is fresh: its counts are taken as this
// run's.
absl::StatusOr<ReplayResult> Replay(Engine* engine, Clock* clock, const Trace& trace,
                                    const PromptSynthesizer& prompts, const ReplayOptions& options);

nlohmann::ordered_json ToJson(const ReplayResult& result);

}  // namespace eventide
