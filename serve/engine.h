// Continuous batching: requests in, tokens out. Each Step plans a batch (serve/batcher.h), submits
// it to the runner (serve/step.h) and retires what has ended; up to two steps are in flight, so the
// host works while the device does. Knows nothing of models or devices.
//
// Guarantees: every accepted request gets exactly one terminal output; all KV blocks and slots come
// back; blocks and slots are reused only after the last step that touched them has retired; a
// failed step ends its own requests and no others. Deterministic: the same calls on a runner that
// gives the same results give the same outputs. One thread at a time; callbacks run on it, between
// state changes.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "serve/batcher.h"
#include "serve/blocks.h"
#include "serve/clock.h"
#include "serve/prefix_cache.h"
#include "serve/request.h"
#include "serve/stats.h"
#include "serve/step.h"
#include "serve/text_sink.h"

namespace eventide {

enum class SchedulingPolicy {
  kFcfs,      // in order of arrival; a request with a priority other than 0 is refused
  kPriority,  // lower priority values first, then in order of arrival
};

struct EngineOptions {
  // 0: what the runner offers. More than that is refused.
  uint32_t max_num_seqs = 0;
  uint32_t max_num_batched_tokens = 0;
  uint64_t max_model_len = 0;
  uint32_t draft_tokens = 0;         // here 0 means none
  bool adapt_draft_tokens = false;   // of a row, by what was right of its last ones; draft_tokens is the most
  uint32_t max_prefill_chunk = 0;    // 0: only the token budget limits a chunk
  uint32_t max_steps_in_flight = 0;  // 0: what the runner offers
  uint64_t max_queued_requests = 65536;
  uint64_t seed = 0;  // of requests that bring none
  SchedulingPolicy scheduling_policy = SchedulingPolicy::kFcfs;
  PrefixCacheOptions prefix_cache;
  TextSinkFactory text_sink;  // absent: no text, and stop strings are refused
};

class Engine {
 public:
  // `runner` and `clock` outlive the engine.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(StepRunner* runner, Clock* clock,
                                                        EngineOptions options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Queues a request. An error means that it was refused: bad values, too long for the model or the
  // pool even alone, an id in use, a full queue. Then there is no output.
  absl::Status AddRequest(Request request, OutputCallback callback);

  // Ends a request with kAbort, in any state. NotFound: no such request, or it has its outcome
  // already.
  absl::Status Cancel(const std::string& id);
  // Ends all requests with kAbort: what to do before the engine goes.
  void CancelAll();

  // Retires steps that have ended, submits the next one, and waits for a step when nothing else can
  // be done. Returns without waiting when there is no work. An error is a bug of the engine, never
  // a failed step.
  absl::Status Step();

  // Requests without an outcome, or steps in flight.
  bool HasWork() const { return !live_.empty() || !flights_.empty(); }
  // Submits nothing more and waits for the steps in flight; afterwards the device touches nothing.
  void Drain();

  EngineStats stats() const;
  // Seconds; of requests that finished with kStop or kLength.
  const std::vector<double>& ttft_seconds() const { return ttft_seconds_; }
  const std::vector<double>& tpot_seconds() const { return tpot_seconds_; }
  const BatchLimits& limits() const { return limits_; }
  StepRunner& runner() { return *runner_; }

  // Forgets all KV that no request holds.
  void ResetPrefixCache() { cache_.Clear(); }

  // Every account agrees with every other: blocks, slots, rows in flight, states.
  absl::Status CheckIntegrity() const;

 private:
  struct Entry;   // a request and all that the engine knows of it
  struct Flight;  // a submitted step and its rows

  Engine(StepRunner* runner, Clock* clock, EngineOptions options, BatchLimits limits,
         BlockPool pool);

  // engine.cc
  absl::Status CheckAcceptable(const Request& request) const;
  uint64_t MaxLength(const Request& request) const;
  void FlushOutputs();

  // engine_submit.cc: plan → rows → runner
  std::vector<WaitingView> WaitingViews();
  // The first request of which each next block of a prompt is coming, by its key.
  using Coming = absl::flat_hash_map<uint64_t, const Entry*>;
  Coming PromptsInPrefill() const;
  bool IsHeld(const Entry& entry, Coming* coming) const;
  BatchPlan Plan();
  // Whether anything changed: a step submitted, a request preempted or ended.
  bool SubmitNext();
  std::unique_ptr<Flight> BuildFlight(const BatchPlan& plan);
  bool AdmitWaiting(Entry* entry);
  void AllocateRow(const PlannedRow& planned, Entry* entry, Flight* flight);
  void Preempt(Entry* entry);

  // engine_retire.cc: outcomes → tokens, ends, releases
  void Retire(const StepOutcome& outcome);
  void FollowDevice(const Flight& flight, const StepOutcome& outcome);
  void TakeRow(Entry* entry, const Row& row, const RowResult& result);
  FinishReason TakeToken(Entry* entry, TokenId token, RequestOutput* output);
  static void Describe(const Entry& entry, RequestOutput* output);
  // Queues the terminal output. The entry is gone afterwards, unless rows in flight still need it.
  void Finish(Entry* entry, FinishReason reason, absl::Status status, RequestOutput output);
  // Once nothing of it is in flight, a request that leaves gives back its blocks and its slot.
  void Settle(Entry* entry);

  StepRunner* runner_;
  Clock* clock_;
  EngineOptions options_;
  BatchLimits limits_;
  PrefixCache cache_;
  uint64_t next_sequence_ = 0;
  uint64_t next_step_ = 0;
  std::vector<uint32_t> free_slots_;
  absl::flat_hash_map<std::string, Entry*> live_;                 // no outcome yet
  std::map<OrderKey, std::unique_ptr<Entry>> waiting_;            // no slot
  std::vector<std::unique_ptr<Entry>> running_;                   // a slot; maybe an outcome
  std::deque<std::unique_ptr<Flight>> flights_;                   // oldest first
  std::deque<std::pair<OutputCallback, RequestOutput>> outputs_;  // to hand out
  bool flushing_ = false;
  bool paused_ = true;  // since the last step was submitted there was a time without requests
  EngineStats stats_;
  ShapeCounter shapes_;
  std::vector<double> ttft_seconds_;
  std::vector<double> tpot_seconds_;
};

}  // namespace eventide
