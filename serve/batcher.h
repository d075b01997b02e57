// Which requests take part in the next step, with how many tokens each: a pure function of the
// queues and the free KV blocks.
//
// Rules, in this order:
// 1. Decode rows, oldest request first ("older": lower priority value, then earlier arrival). A
//    row that needs a KV block when none is free preempts the youngest requests, never an older
//    one; a row that cannot get its blocks stalls, and then no younger row and no new request
//    takes a free block before it.
// 2. Requests without a slot may join, strictly in order, as far as slots and blocks go: the
//    first one that does not fit keeps all behind it out. One fits if the pool holds, beside all
//    blocks that its prefill and first generated token need, what everybody running can grow by
//    until that prefill is done and a block has been filled after it: so it is not preempted
//    before its work has paid. Nobody joins in a step that preempts or stalls, or while a
//    preempted request is on its way back. A request that is held (somebody before it prefills
//    most of what it needs, the engine knows) does not join yet and keeps nobody out.
// 3. What decode rows leave of the token budget is for prefill chunks, of running requests and
//    of those that may join. Half of it (rounded up) belongs to the oldest. The other half goes
//    to those of the same priority that have fewer tokens left than the oldest, fewest first;
//    then the oldest takes what it can use, and then the others by priority and tokens left. A
//    request that may join and gets no tokens does not join yet.
//
// Fairness: a short prompt beside a giant one waits for shorter ones only, the giant takes at
// most twice as many steps as alone, and prompts of equal length are served in order, as if
// there was no rule.
//
// Progress: the oldest running request can preempt all others and fits the pool alone (checked
// when it was added), so it always gets its row once the steps in flight have retired. The
// oldest prefill gets tokens whenever decode rows leave any. The head of the queue waits only
// for requests that are running: with none, it fits and is not held.
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
  uint32_t max_step_drafts = UINT32_MAX;   // drafts of all rows of a step: what has room for logits
  uint32_t max_prefill_chunk = 0;          // tokens of a prefill row; 0: only the budget limits it
};

absl::Status ValidateLimits(const BatchLimits& limits);

// A request that has no slot: new, or preempted (then `tokens` counts what it has generated too).
struct WaitingView {
  OrderKey order;
  uint64_t tokens = 0;  // known tokens: what prefill has to cover
  // Of these, in full blocks of the prefix cache: a multiple of block_size, < tokens.
  uint64_t cached_tokens = 0;
  uint64_t idle_blocks = 0;  // of the cached blocks: counted in free_blocks until it joins
  uint64_t max_length = 0;   // the request ends when it has so many tokens
  bool held = false;         // somebody before it is about to publish most of what it needs
};

// A request that has a slot.
struct RunningView {
  OrderKey order;
  uint64_t history = 0;            // tokens that the host has seen
  uint64_t prefill_target = 0;     // tokens that were known at admission
  uint64_t prefill_submitted = 0;  // of these, submitted in some step or cached
  uint64_t unretired_samples = 0;  // rows in flight that sample
  uint64_t max_length = 0;
  uint64_t blocks = 0;  // KV blocks held
  // Of these, others hold them too: they do not come back when this request alone goes. May count
  // too few blocks as coming back, when all who share one go: then the next plan sees them.
  uint64_t shared_blocks = 0;
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

// Of `free_blocks`, what a waiting request takes when it joins.
uint64_t JoiningBlocks(const WaitingView& waiting, const BatchLimits& limits);

// `waiting` in order; `running` in any order. `free_blocks` are those that can be allocated, idle
// blocks of the prefix cache among them; `free_slots` counts slots that nothing in flight uses.
BatchPlan NextBatch(std::span<const WaitingView> waiting, std::span<const RunningView> running,
                    uint64_t free_blocks, uint64_t free_slots, const BatchLimits& limits);

}  // namespace eventide
