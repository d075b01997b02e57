// Everything both sides of a launch share: the step header and rows the host writes, the state of a
// slot, node records, the abort word. Sizes and offsets are checked on both sides.
#pragma once

#include "device/base.h"

namespace eventide {

inline constexpr u32 kAbiVersion = 4;
// Row::query_length: "the device knows" (decode and speculative rows): the sequence's last token and as
// many drafts as the device has, at most draft_length; or 0 tokens when the slot has finished in a step
// that the host has not seen yet.
inline constexpr u32 kDeviceKnows = 0xffffffffu;
// A symbol's value: the sum of the rows' query lengths, which only the device knows.
inline constexpr i32 kSumOfRows = -1;

// What to do with a row's last logits (Row::sampling).
enum RowFlags : u32 {
  kRowNone = 0,       // prefill chunk that is not the last: no token
  kRowSample = 1,     // append a token to the slot's history, and one for each draft that was right
  kRowAllLogits = 2,  // keep the logits of every token of the row (score)
  kRowKnown = 4,      // with kDeviceKnows: its tokens are all known, none is a draft to be checked
};

struct Row {
  u32 slot;
  u32 query_length;  // tokens of this step, or kDeviceKnows
  u32 draft_length;  // with kDeviceKnows only
  u32 sampling;      // RowFlags
};
static_assert(sizeof(Row) == 16, "Row");

inline constexpr u32 kMaxStopTokens = 8;
inline constexpr u32 kMaxDraftTokens = 16;  // of a row in one step

enum SlotFinish : u32 {
  kSlotRunning = 0,
  kSlotStopped = 1,
  kSlotLength = 2,
  kSlotNoNumber = 3,  // no logit of the next token was a number: nothing to go on with
};

// A sequence that a draft model speculates on has a slot in both models, and one history for the two.
enum SlotRole : u32 {
  kSlotAlone = 0,
  kSlotVerifies = 1,  // the sequence itself; its partner writes drafts behind the history
  kSlotDrafts = 2,    // the draft model's: what it appends are its partner's drafts
};

// One sequence as the device knows it. The host writes it at admission only; afterwards the step's
// sampling tasks do, at the end of a step, when every reader of the step has finished.
struct SlotState {
  u64 history;          // i32[max_length]: prompt, then generated tokens; behind them drafts
  u32 history_length;   // tokens known (prompt + generated)
  u32 context_length;   // tokens whose KV is in the cache
  u32 prompt_length;
  u32 max_length;       // the sequence ends when history_length reaches it
  u32 min_length;       // stop tokens do not end it before
  u32 finish;           // SlotFinish
  u64 key;              // random key of the request
  float temperature;    // 0 is greedy
  float top_p;          // 1 is off
  u32 top_k;            // 0 is off
  u32 stop_count;
  i32 stop_tokens[kMaxStopTokens];
  u64 pace;             // how many tokens a step takes: one word, since late workers read it (below)
  u16 draft_limit;      // tokens to draft by looking back, at most
  u16 draft_length;     // likewise next time, by what became of the last ones (ops/draft.h); 0: draft_limit always
  u32 role;             // SlotRole
  u64 partner;          // SlotState of the other model, whose steps and this one's run in turns
};
static_assert(sizeof(SlotState) == 112, "SlotState");

// SlotState::pace: 1 + the step that set it << 16 | what that step itself went by << 8 | what later ones
// go by. Each is a number of drafts behind the history's end (kRowKnown: of known tokens without KV before
// the last), or kPaceEnded. 0: none. A worker may start so late that the step's sampling tasks have run, and must come to the same lengths as the others.
inline constexpr u32 kPaceEnded = 0x80;
EVT_FN u64 NextPace(u64 pace, u64 step, u32 next) {
  return (step + 1) << 16 | (pace & 0xff) << 8 | next;
}
EVT_FN u32 PaceOf(u64 pace, u64 step) {
  return static_cast<u32>(pace >> 16 == step + 1 ? pace >> 8 : pace) & 0xff;
}

// One line of the results ring, written by the step's sampling tasks in device (or pinned host) memory,
// read by the host after the step has retired.
struct StepResult {
  u32 slot;
  u32 count;         // tokens appended by this step
  u32 finish;        // SlotFinish after this step
  u32 query_length;  // tokens the row had
  u32 accepted;      // of its drafts; one more token follows them unless the sequence ended
  i32 tokens[kMaxDraftTokens + 1];  // `count` of them
};
static_assert(sizeof(StepResult) == 88, "StepResult");

struct StepHeader {
  u32 abi, flags;
  u64 step;
  u32 rows, rows_capacity;
  u64 rows_ptr;          // Row[rows]
  u64 block_table_ptr;   // u32[slots][blocks_per_slot]
  u64 slot_state_ptr;    // SlotState[slots]
  u64 results_ring_ptr;  // StepResult[rows_capacity] of this step
  u32 blocks_per_slot;
  u32 symbol_count;
  i32 symbols[kMaxSymbols];  // kSumOfRows where the device computes it
  u32 workers;
  u32 bank;              // which of the two counter banks this step uses: step & 1
  u64 timeout_ns;        // no task finished anywhere for this long: the step is aborted
};
static_assert(sizeof(StepHeader) == 144, "StepHeader");

// A tensor an op was called with: the layer's instance lives at address + layer * layer_stride.
struct TensorRef {
  u64 address;
  i64 layer_stride;  // bytes
};

inline constexpr u32 kTensorMapBytes = 128;  // CUtensorMap of the CUDA driver

// One task grid's record, read at run time so that all layers and all grids of a kind share one body.
struct Node {
  u32 kind;
  u32 policy;       // PolicyId
  u64 boxes;        // tensor maps of the op's boxes, kTensorMapBytes each; 0: none
  TensorRef operands[kMaxOperands];
  alignas(16) u8 params[kMaxParamBytes];
};
static_assert(sizeof(Node) == 16 + 16 * kMaxOperands + kMaxParamBytes, "Node");

enum PolicyId : u32 { kPolicyStatic = 0, kPolicyTicket = 1 };

enum Role : u32 { kRoleStream = 0, kRoleInput = 1, kRoleCompute = 2, kRoles = 3 };

enum AbortCause : u32 {
  kAbortNone = 0,        // nothing to tell: before the first task, or after the last
  kAbortStuckEvent = 1,  // an event never reached its target
  kAbortStuckPage = 2,   // no page was granted, or a granted one never filled
  kAbortStuckRole = 3,   // another role of the worker handed nothing over; the task named is the last one
  kAbortStuckTask = 4,   // waits for nothing: the task itself does not end
};

// What a role of a worker was at when its step was given up. ProgramRecord::abort is a word that everyone
// polls (relaxed) in every wait loop, to leave once it is not 0, and kEventStrideBytes behind it a record
// for every role of every worker. Each worker tells its own before it leaves; the host, when the step has
// ended, looks for the oldest task among them: what all the others wait for (runtime/abort.h).
struct AbortRecord {
  u32 cause;
  u32 worker, role;
  i32 grid, layer;
  i32 at[kMaxCoords];
  u32 event;    // index of the event element in the bank
  u32 seen, expected;
};
static_assert(sizeof(AbortRecord) == 44, "AbortRecord");
EVT_FN constexpr u64 AbortBytes(u64 workers) {
  return kEventStrideBytes + workers * kRoles * sizeof(AbortRecord);
}

// What a kernel launch is given, constant over steps.
struct ProgramRecord {
  u64 nodes;       // Node[]
  u64 counters;    // two banks of event counters, then ticket counters, each bank_bytes long
  u64 bank_bytes;
  u64 abort;       // u32, then AbortRecord[workers][kRoles] at kEventStrideBytes
  u64 progress;    // u32 at kEventStrideBytes apart, tasks finished: one per worker, on a GPU one for all
  u64 timeline;    // 0: not recorded
  u64 published;   // u64[]: base address of every tensor of the program that a Load reads, by its index
};
static_assert(sizeof(ProgramRecord) == 56, "ProgramRecord");

}  // namespace eventide
