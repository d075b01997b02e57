// The batcher's rules played out without a model, a runner or an engine: requests arrive, plans are
// made true at once, every step yields its tokens. For questions about many steps: who waits how
// long, who is preempted how often.
#pragma once

#include <algorithm>
#include <vector>

#include "serve/batcher.h"
#include "tests/support/test.h"

namespace eventide {

struct WorldRequest {
  uint64_t prompt = 1, output = 1;  // tokens
  uint64_t arrival = 0;             // step
  int32_t priority = 0;
  // What became of it.
  uint64_t generated = 0, prefilled = 0, target = 0, blocks = 0;
  uint64_t joined = 0, first_token = 0, done = 0;  // steps, counted from 1; 0: not yet
  uint64_t preemptions = 0, prefill_work = 0;
  bool running = false;

  uint64_t max_length() const { return prompt + output; }
};

class BatchWorld {
 public:
  BatchWorld(BatchLimits limits, uint64_t blocks, std::vector<WorldRequest> requests)
      : requests(std::move(requests)), limits_(limits), free_(blocks), slots_(limits.max_num_seqs) {
    REQUIRE(ValidateLimits(limits).ok());
  }

  // One plan, made true. Something must move whenever there is work.
  BatchPlan Step() {
    std::vector<WaitingView> waiting;
    std::vector<RunningView> running;
    std::vector<size_t> who_waits, who_runs;
    for (size_t i : ByOrder()) {
      const WorldRequest& r = requests[i];
      if (r.done != 0 || r.arrival > steps_) continue;
      const OrderKey order = {r.priority, i};
      if (r.running) {
        who_runs.push_back(i);
        running.push_back({.order = order,
                           .history = r.prompt + r.generated,
                           .prefill_target = r.target,
                           .prefill_submitted = std::min(r.prefilled, r.target),
                           .max_length = r.max_length(),
                           .blocks = r.blocks});
      } else {
        who_waits.push_back(i);
        waiting.push_back(
            {.order = order, .tokens = r.prompt + r.generated, .max_length = r.max_length()});
      }
    }
    ++steps_;
    const BatchPlan plan = NextBatch(waiting, running, free_, slots_, limits_);
    REQUIRE(plan.tokens <= limits_.max_num_batched_tokens);
    if (!who_runs.empty() || !who_waits.empty()) {
      REQUIRE((!plan.rows.empty() || !plan.preempted.empty()));
    }
    for (size_t index : plan.preempted) {
      ++requests[who_runs[index]].preemptions;
      Leave(&requests[who_runs[index]]);
    }
    for (const PlannedRow& row : plan.rows) {
      Take(row, &requests[row.admitted ? who_waits[row.index] : who_runs[row.index]]);
    }
    return plan;
  }
  // Until all have their tokens.
  void Run(uint64_t most_steps) {
    while (std::ranges::any_of(requests, [](const WorldRequest& r) { return r.done == 0; })) {
      REQUIRE(steps_ < most_steps);
      Step();
    }
  }
  uint64_t steps() const { return steps_; }
  uint64_t free_blocks() const { return free_; }

  std::vector<WorldRequest> requests;

 private:
  std::vector<size_t> ByOrder() const {
    std::vector<size_t> order(requests.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::ranges::stable_sort(order, {}, [&](size_t i) { return requests[i].priority; });
    return order;
  }

  void Take(const PlannedRow& row, WorldRequest* r) {
    if (row.admitted) {
      REQUIRE(slots_ > 0);
      --slots_;
      r->running = true;
      if (r->joined == 0) r->joined = steps_;
      r->target = r->prompt + r->generated;
      r->prefilled = 0;
    }
    REQUIRE(row.new_blocks <= free_);
    free_ -= row.new_blocks;
    r->blocks += row.new_blocks;
    if (!row.decode) {
      r->prefilled += row.query_length;
      r->prefill_work += row.query_length;
      REQUIRE(r->prefilled <= r->target);
    }
    if (!row.sample) return;
    REQUIRE(r->blocks * limits_.block_size >= r->prompt + r->generated);
    ++r->generated;
    if (r->first_token == 0) r->first_token = steps_;
    if (r->generated < r->output) return;
    r->done = steps_;
    Leave(r);
  }
  void Leave(WorldRequest* r) {
    free_ += r->blocks;
    ++slots_;
    r->blocks = 0;
    r->running = false;
  }

  BatchLimits limits_;
  uint64_t free_, slots_;
  uint64_t steps_ = 0;
};

}  // namespace eventide
