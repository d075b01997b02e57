// Which requests take part in the next step, with how many tokens each: a pure function of the
// queues and the free KV blocks.
//
// Rules, in this order:
// 1. Decode rows, oldest request first. A row that needs a KV block when none is free preempts the
//    youngest requests, never an older one; a row that cannot get its blocks stalls, and then no
//    younger row and no new request takes a free block before it.
// 2. Prefill chunks of running requests, oldest first, cut to the token budget.
// 3. New requests, strictly in order, while slots, budget and blocks last. All blocks that a
// request's
//    prefill and first generated token need are allocated when it is admitted, and one block for
//    each running request is left free, so that it is not preempted at once. Nothing is admitted in
//    a step that preempts or stalls.
//
// Progress: the oldest running request can preempt all others and fits the pool alone (checked when
// it was added), so it always gets its row once the steps in flight have retired. Preemptions are
// bounded by the block growth of older requests. The head of the queue waits only for requests that
// are running.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "serve/request.h"

namespace eventide {

struct BatchLimits {
  uint32_t max_num_seqs = 256;             // slots; rows of a step
  uint32_t max_num_batched_tokens = 2048;  // query tokens of a step, drafts included
  uint64_t max_model_len = 2048;           // prompt + generated tokens of a request
  uint32_t block_size = 16;                // tokens of a KV block
  uint32_t draft_tokens = 0;               // a decode row may carry up to so many drafts
  uint32_t max_prefill_chunk = 0;  // tokens of one prefill row; 0: only the budget limits it
};

absl::Status ValidateLimits(const BatchLimits& limits);

// A request that has no slot: new, or preempted (then `tokens` counts what it has generated too).
struct WaitingView {
  OrderKey order;
  uint64_t tokens = 0;  // known tokens: what prefill has to cover
  uint64_t cached_tokens =
      0;  // of these, in shared full blocks already: a multiple of block_size, < tokens
  uint64_t max_length = 0;  // the request ends when it has so many tokens
};

// A request that has a slot.
struct RunningView {
  OrderKey order;
  uint64_t history = 0;            // tokens that the host has seen
  uint64_t prefill_target = 0;     // tokens that were known at admission
  uint64_t prefill_submitted = 0;  // of these, submitted in some step or cached
  uint64_t unretired_samples = 0;  // rows in flight that sample
  uint64_t max_length = 0;
  uint64_t blocks = 0;     // KV blocks held
  bool leaving = false;    // finished, cancelled or preempted: waits for its steps to retire
  bool returning = false;  // leaving by preemption: will wait again, so nobody younger is admitted
  bool unretired = false;  // has rows in flight: its blocks and its slot cannot be reused yet
};

struct PlannedRow {
  size_t index = 0;  // into `running`, or `waiting` if admitted
  bool admitted = false;
  bool decode = false;  // query length is the device's: 1 + draft_length, or 0 if it has ended
  bool sample = false;  // appends at least one token unless the request has ended
  uint32_t query_length = 0;  // at least 1; for decode the most it can be
  uint32_t draft_length = 0;
  uint64_t new_blocks = 0;  // to allocate and append to the request's table before the step
};

struct BatchPlan {
  std::vector<PlannedRow> rows;
  std::vector<size_t> preempted;  // indices into `running`; none has a row in this step
  uint64_t tokens = 0;            // sum of query lengths: within the budget
  bool stalled = false;           // a row waits for blocks of requests that are leaving
};

// KV blocks held by requests that never shared any: what a request of `max_length` tokens needs at
// most. The last token is sampled and never read, so it has no KV.
uint64_t MostBlocks(uint64_t max_length, uint32_t block_size);

// `waiting` in order; `running` in any order. `free_blocks` are the pool's; `free_slots` counts
// slots that nothing in flight uses.
BatchPlan NextBatch(std::span<const WaitingView> waiting, std::span<const RunningView> running,
                    uint64_t free_blocks, uint64_t free_slots, const BatchLimits& limits);

}  // namespace eventide
