// The interface between the serving core and whatever runs a step: a megakernel on a GPU, the same
// graph on CPU threads, or a fake in tests. Speaks the device's language (device/abi.h: slots,
// rows).
//
// The host is one step late. It submits step n + 1 before it has seen the tokens of step n; so the
// runner's side (the "device") owns what a slot knows:
//   * Per slot: the token history, how many of its tokens have KV (the context), the limits. Set by
//     Admit, then changed by steps only.
//   * A row with an explicit query_length q takes the history's tokens [context, context + q) and
//   writes
//     their KV. With kRowSample (then context + q is the history's length) it appends one token.
//   * A row with query_length kDeviceKnows does nothing if the slot has ended. Otherwise it takes
//   the
//     tokens [context, history_length) plus at most draft_length tokens that the device drafts
//     itself, appends 1 to 1 + draft_length tokens, and leaves context = history_length - 1. Drafts
//     never reach past max_length: KV is written at positions below max_length - 1 only.
//   * The slot ends when a stop token is appended at a history length (after appending) of at least
//     min_length, or when the length reaches max_length, or where a token has no logit that is a number:
//     none is appended then. Nothing is appended after that.
// KV of position p of a slot lies in block_table[slot][p / block_size]. The host has reserved
// blocks for the longest outcome of all submitted steps before it submits them.
//
// Calls come from one thread. A slot is admitted, released or its blocks reused only when no step
// in flight has a row for it. Steps retire in the order of submission.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "device/abi.h"
#include "serve/blocks.h"
#include "serve/request.h"

namespace eventide {

// What a runner offers; constant over its life.
struct RunnerInfo {
  uint32_t max_slots = 0;                   // slots, and rows of a step
  uint32_t max_batched_tokens = 0;          // query tokens of a step
  uint64_t max_model_len = 0;               // tokens of one sequence
  uint32_t block_size = kDefaultBlockSize;  // tokens
  uint64_t num_blocks = 0;                  // ids 0 … num_blocks - 1
  uint32_t max_outputs = 0;                 // tokens of a step whose logits are wanted; 0: all
  uint32_t max_draft_tokens = 0;            // of a decode row; 0: no speculation
  // Drafts come from a second model. Its KV lies in the same blocks, and that of a row's last draft is
  // written by the next step only.
  bool draft_model = false;
  uint32_t max_steps_in_flight = 1;         // 1 or 2
  uint32_t vocab_size = 0;
  std::vector<TokenId> eos_tokens;  // the model's
  std::string clock;  // whose clock times the steps: "gpu" or "cpu"; empty: nobody's
};

// What the device must know of a request. Spans are valid during the call only.
struct SlotAdmission {
  uint32_t slot = 0;
  std::span<const TokenId>
      tokens;                  // history: the prompt, and what was generated before a preemption
  uint32_t prompt_length = 0;  // of these, the user's
  uint32_t cached_tokens = 0;  // context: the first so many have KV in the slot's blocks already
  uint32_t max_length = 0;     // tokens, prompt included
  uint32_t min_length = 0;     // tokens, prompt included
  uint64_t key = 0;            // with the position, the key of the random numbers
  float temperature = 0;       // 0: greedy
  float top_p = 1;             // 1: off
  uint32_t top_k = 0;          // 0: off
  uint32_t draft_tokens = 0;   // that the device looks for in each step, at most
  bool adapt_draft_tokens = false;  // fewer where drafts have been wrong (ops/draft.h)
  std::span<const TokenId> stop_tokens;  // at most kMaxStopTokens; the host looks for further ones
};

// Blocks to append to a slot's table before the step.
struct BlockTableUpdate {
  uint32_t slot = 0;
  uint32_t first = 0;               // index in the table: its length so far
  std::span<const BlockId> blocks;  // valid until Submit returns
};

struct StepInput {
  uint64_t step = 0;          // counts up from 0
  std::span<const Row> rows;  // at most one for a slot, may be none; valid until Submit returns
  std::span<const BlockTableUpdate> block_updates;
};

struct RowResult {
  uint32_t slot = 0;
  // Query tokens that the device processed: 0 for a slot that had ended before.
  uint32_t query_length = 0;
  uint32_t accepted = 0;        // of its query_length - 1 drafts, where the device knew the length
  std::vector<TokenId> tokens;  // appended by this step, in order
  bool finished = false;        // the slot has ended, in this step or before
  bool no_number = false;       // because no logit of the token behind `tokens` was a number
};

// A retired step: `rows` in the order of StepInput::rows; or `status` is an error that says what
// went wrong, and nothing is known of the rows' slots.
struct StepOutcome {
  uint64_t step = 0;
  absl::Status status;
  std::vector<RowResult> rows;
  // Milliseconds by RunnerInfo::clock: what the step took; what had passed since the end of the step before it.
  // Negative: not known.
  double step_ms = -1, gap_ms = -1;
};

class StepRunner {
 public:
  virtual ~StepRunner() = default;

  virtual const RunnerInfo& info() const = 0;

  // Gives a free slot to a sequence with an empty block table (blocks of cached tokens come with
  // the first step's update). After an error the slot is free.
  virtual absl::Status Admit(const SlotAdmission& admission) = 0;

  // Queues a step and returns at once; at most max_steps_in_flight are unretired. After an error
  // the step does not exist; nothing is known of its rows' slots and only Release is called for
  // them.
  virtual absl::Status Submit(const StepInput& input) = 0;

  // The oldest unretired step, once it has ended: Poll looks, Wait waits (bounded: a stuck step
  // ends with an error). Wait is called only with a step in flight.
  virtual std::optional<StepOutcome> Poll() = 0;
  virtual StepOutcome Wait() = 0;

  // The slot's sequence is gone.
  virtual void Release(uint32_t slot) = 0;

  // Of early exit, while no step is in flight: how many query tokens have left behind each layer so far. Empty:
  // there is none.
  virtual absl::StatusOr<std::vector<uint64_t>> TokensLeft() { return std::vector<uint64_t>(); }

  // Runs of a compiler in this process so far.
  virtual uint64_t compilations() const { return 0; }
};

}  // namespace eventide
