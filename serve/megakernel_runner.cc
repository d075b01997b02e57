#include "serve/megakernel_runner.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <set>

#include "absl/strings/str_cat.h"
#include "core/status.h"

namespace eventide {

absl::StatusOr<std::unique_ptr<MegakernelRunner>> MegakernelRunner::Create(
    const WeightSource& source, const RunnerOptions& options) {
  LoadOptions load = options;
  DecoderLimits& limits = load.limits;
  if (limits.num_blocks == 0 && limits.block_size > 0) {
    limits.num_blocks =
        int64_t{limits.max_rows} *
        ((int64_t{limits.max_model_len} + limits.block_size - 1) / limits.block_size);
  }
  const WeightSource* drafts = options.draft_model;
  if (drafts != nullptr) RETURN_IF_ERROR(DraftModel::CheckFits(source.config(), drafts->config()));
  ASSIGN_OR_RETURN(LoadedDecoder loaded, LoadDecoder(source, load));
  std::unique_ptr<MegakernelRunner> runner(new MegakernelRunner(std::move(loaded)));
  RETURN_IF_ERROR(
      InPhase(options.backend.phases, "kv_alloc",
              [&] { return runner->Allocate(options.backend.time_steps); }));
  if (runner->decoder_.HasExits()) {
    RETURN_IF_ERROR(runner->SetExitThresholds(std::vector<float>(
        static_cast<size_t>(source.config().layers), options.exit_threshold)));
  }
  if (drafts == nullptr) return runner;
  load.storage = options.draft_storage;
  limits.exit_first = 0;
  ASSIGN_OR_RETURN(runner->draft_model_,
                   DraftModel::Create(*drafts, load,
                                      {.backend = &runner->backend_,
                                       .decoder = &runner->decoder_,
                                       .slots = runner->slots_.address,
                                       .tables = runner->tables_.address,
                                       .blocks_per_slot = runner->blocks_per_slot_}));
  runner->info_.draft_model = true;
  return runner;
}

absl::Status MegakernelRunner::Allocate(bool time_steps) {
  const DecoderLimits& limits = decoder_.limits;
  if (backend_.device == "cuda" && time_steps) info_.clock = "gpu";
  if (backend_.device == "cpu") info_.clock = "cpu";
  info_.max_slots = static_cast<uint32_t>(limits.max_rows);
  info_.max_batched_tokens = static_cast<uint32_t>(limits.max_tokens);
  info_.max_outputs = static_cast<uint32_t>(limits.max_outputs);
  info_.max_draft_tokens = kMaxDraftTokens;
  info_.max_model_len = static_cast<uint64_t>(limits.max_model_len);
  info_.block_size = static_cast<uint32_t>(limits.block_size);
  info_.num_blocks = static_cast<uint64_t>(limits.num_blocks);
  info_.max_steps_in_flight = static_cast<uint32_t>(std::min(2, executor().MaxInFlight()));
  info_.vocab_size = static_cast<uint32_t>(decoder_.config.vocab);
  info_.eos_tokens.assign(decoder_.config.eos.begin(), decoder_.config.eos.end());
  blocks_per_slot_ =
      static_cast<uint32_t>((limits.max_model_len + limits.block_size - 1) / limits.block_size);
  const int64_t slots = limits.max_rows;
  admitted_.assign(slots, false);
  ASSIGN_OR_RETURN(slots_, executor().AllocateBuffer(slots * sizeof(SlotState)));
  ASSIGN_OR_RETURN(history_, executor().AllocateBuffer(slots * limits.max_model_len * 4));
  ASSIGN_OR_RETURN(tables_, executor().AllocateBuffer(slots * blocks_per_slot_ * 4));
  for (int i = 0; i < 2; ++i) {
    ASSIGN_OR_RETURN(rows_[i], executor().AllocateBuffer(slots * sizeof(Row)));
    ASSIGN_OR_RETURN(results_[i], executor().AllocateResults(slots * sizeof(StepResult)));
  }
  return absl::OkStatus();
}

absl::Status MegakernelRunner::Admit(const SlotAdmission& a) {
  if (a.slot >= info_.max_slots) {
    return absl::InvalidArgumentError(
        absl::StrCat("slot ", a.slot, " of ", info_.max_slots, " does not exist"));
  }
  if (admitted_[a.slot]) {
    return absl::FailedPreconditionError(absl::StrCat("slot ", a.slot, " is in use"));
  }
  if (a.tokens.empty() || a.tokens.size() > info_.max_model_len ||
      a.max_length > info_.max_model_len || a.cached_tokens >= a.tokens.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a sequence of ", a.tokens.size(), " tokens (", a.cached_tokens, " cached, at most ",
        a.max_length, ") does not fit a model length of ", info_.max_model_len));
  }
  for (TokenId token : a.tokens) {
    if (token < 0 || token >= static_cast<TokenId>(info_.vocab_size)) {
      return absl::InvalidArgumentError(
          absl::StrCat("token ", token, " is not in the vocabulary of ", info_.vocab_size));
    }
  }
  if (a.stop_tokens.size() > kMaxStopTokens) {
    return absl::InvalidArgumentError(absl::StrCat(a.stop_tokens.size(), " stop tokens; at most ",
                                                   kMaxStopTokens, " are watched for"));
  }
  const int64_t offset = int64_t{a.slot} * static_cast<int64_t>(info_.max_model_len) * 4;
  SlotState state = {};
  state.history = history_.address + static_cast<uint64_t>(offset);
  state.history_length = static_cast<u32>(a.tokens.size());
  state.context_length = a.cached_tokens;
  state.prompt_length = a.prompt_length;
  state.max_length = a.max_length;
  state.min_length = a.min_length;
  state.finish = kSlotRunning;
  state.key = a.key;
  state.temperature = a.temperature;
  state.top_p = a.top_p;
  state.top_k = a.top_k;
  state.draft_limit = static_cast<u16>(std::min(a.draft_tokens, kMaxDraftTokens));
  state.draft_length = a.adapt_draft_tokens ? state.draft_limit : u16{0};
  state.stop_count = static_cast<u32>(a.stop_tokens.size());
  std::copy(a.stop_tokens.begin(), a.stop_tokens.end(), state.stop_tokens);
  if (draft_model_ != nullptr && a.draft_tokens > 0) {
    RETURN_IF_ERROR(draft_model_->Admit(a.slot, &state));
  }
  RETURN_IF_ERROR(executor().Write(history_, offset, a.tokens.data(),
                                   static_cast<int64_t>(a.tokens.size() * 4)));
  RETURN_IF_ERROR(
      executor().Write(slots_, int64_t{a.slot} * sizeof(SlotState), &state, sizeof(state)));
  admitted_[a.slot] = true;
  return absl::OkStatus();
}

absl::Status MegakernelRunner::SetContext(uint32_t slot, uint32_t context,
                                          std::span<const TokenId> tokens,
                                          std::span<const TokenId> drafts) {
  if (slot >= info_.max_slots || !admitted_[slot]) {
    return absl::InvalidArgumentError(absl::StrCat("slot ", slot, " is not admitted"));
  }
  // One token more is appended by the step.
  if (tokens.empty() || context >= info_.max_model_len ||
      drafts.size() > kMaxDraftTokens ||
      tokens.size() + drafts.size() >= info_.max_model_len - context) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a context of ", context, ", ", tokens.size(), " tokens and ", drafts.size(),
        " drafts do not fit a model length of ", info_.max_model_len, " or a step"));
  }
  std::vector<TokenId> known(tokens.begin(), tokens.end());
  known.insert(known.end(), drafts.begin(), drafts.end());
  for (TokenId token : known) {
    if (token < 0 || token >= static_cast<TokenId>(info_.vocab_size)) {
      return absl::InvalidArgumentError(
          absl::StrCat("token ", token, " is not in the vocabulary of ", info_.vocab_size));
    }
  }
  const int64_t history = int64_t{slot} * static_cast<int64_t>(info_.max_model_len) + context;
  RETURN_IF_ERROR(executor().Write(history_, history * 4, known.data(),
                                   static_cast<int64_t>(known.size() * 4)));
  static_assert(offsetof(SlotState, context_length) == offsetof(SlotState, history_length) + 4);
  const u32 lengths[2] = {context + static_cast<u32>(tokens.size()), context};
  const int64_t state = int64_t{slot} * sizeof(SlotState);
  RETURN_IF_ERROR(executor().Write(slots_, state + offsetof(SlotState, history_length), lengths,
                                   sizeof(lengths)));
  const u64 pace = drafts.size();
  RETURN_IF_ERROR(executor().Write(slots_, state + offsetof(SlotState, pace), &pace, sizeof(pace)));
  return draft_model_ != nullptr ? draft_model_->SetContext(slot, lengths[0]) : absl::OkStatus();
}

void MegakernelRunner::Release(uint32_t slot) {
  EVT_CHECK(slot < info_.max_slots);
  admitted_[slot] = false;
  if (draft_model_ != nullptr) draft_model_->Release(slot);
}

// What would let a step touch memory that is not its own.
absl::Status MegakernelRunner::CheckInput(const StepInput& input) const {
  if (flights_.size() >= info_.max_steps_in_flight) {
    return absl::FailedPreconditionError(
        absl::StrCat(flights_.size(), " steps are in flight already"));
  }
  if (input.rows.size() > info_.max_slots) {
    return absl::InvalidArgumentError(absl::StrCat("a step of ", input.rows.size(),
                                                   " rows; it may have at most ", info_.max_slots));
  }
  std::set<u32> used;
  uint64_t outputs = 0;
  for (const Row& row : input.rows) {
    if (row.slot >= info_.max_slots || !admitted_[row.slot] || !used.insert(row.slot).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("a row of slot ", row.slot, ", which is not admitted, or named twice"));
    }
    const bool fixed = row.query_length != kDeviceKnows;
    if (row.draft_length > (fixed ? 0 : info_.max_draft_tokens)) {
      return absl::InvalidArgumentError(
          absl::StrCat("a row of slot ", row.slot, " with ", row.draft_length,
                       " drafts; rows of known length carry none, others at most ",
                       info_.max_draft_tokens));
    }
    if (row.sampling != kRowNone) {
      outputs += row.sampling & kRowAllLogits && fixed ? row.query_length : 1 + row.draft_length;
    }
  }
  if (outputs > info_.max_outputs) {
    return absl::InvalidArgumentError(absl::StrCat("a step that wants up to ", outputs,
                                                   " tokens' logits; it has room for ",
                                                   info_.max_outputs));
  }
  for (const BlockTableUpdate& update : input.block_updates) {
    if (update.slot >= info_.max_slots || update.first > blocks_per_slot_ ||
        update.blocks.size() > blocks_per_slot_ - update.first) {
      return absl::InvalidArgumentError(absl::StrCat("blocks ", update.first, " + ",
                                                     update.blocks.size(), " of slot ", update.slot,
                                                     " exceed its table of ", blocks_per_slot_));
    }
    for (BlockId block : update.blocks) {
      if (block >= info_.num_blocks) {
        return absl::InvalidArgumentError(
            absl::StrCat("KV block ", block, " of ", info_.num_blocks, " does not exist"));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status MegakernelRunner::WriteTables(const StepInput& input) {
  for (const BlockTableUpdate& update : input.block_updates) {
    const int64_t first = int64_t{update.slot} * blocks_per_slot_ + update.first;
    RETURN_IF_ERROR(executor().Write(tables_, first * 4, update.blocks.data(),
                                     static_cast<int64_t>(update.blocks.size() * 4)));
  }
  return executor().Write(rows_[submitted_ & 1], 0, input.rows.data(),
                          static_cast<int64_t>(input.rows.size_bytes()));
}

absl::Status MegakernelRunner::Submit(const StepInput& input) {
  RETURN_IF_ERROR(CheckInput(input));
  RETURN_IF_ERROR(WriteTables(input));
  const uint64_t bank = submitted_ & 1;
  StepHeader header = {};
  header.rows = static_cast<u32>(input.rows.size());
  header.rows_capacity = info_.max_slots;
  header.rows_ptr = rows_[bank].address;
  header.block_table_ptr = tables_.address;
  header.slot_state_ptr = slots_.address;
  header.results_ring_ptr = results_[bank].address;
  header.blocks_per_slot = blocks_per_slot_;
  header.symbols[0] = static_cast<i32>(input.rows.size());
  header.symbols[1] = kSumOfRows;
  if (draft_model_ != nullptr) RETURN_IF_ERROR(draft_model_->Submit(input.rows));
  if (const absl::Status status = executor().Submit(header); !status.ok()) {
    if (draft_model_ != nullptr) draft_model_->Wait().IgnoreError();
    return status;
  }
  flights_.push_back({input.step, bank, {input.rows.begin(), input.rows.end()}});
  ++submitted_;
  return absl::OkStatus();
}

std::optional<StepOutcome> MegakernelRunner::Poll() {
  if (flights_.empty()) return std::nullopt;
  const absl::StatusOr<bool> done = backend_.done();
  // An error is Wait's to tell.
  if (done.ok() && !*done) return std::nullopt;
  return Wait();
}

StepOutcome MegakernelRunner::Wait() {
  EVT_CHECK(!flights_.empty());
  const Flight flight = std::move(flights_.front());
  flights_.pop_front();
  StepOutcome outcome;
  outcome.step = flight.step;
  outcome.status = executor().Wait();
  if (outcome.status.ok()) {
    outcome.status = ReadResults(flight, &outcome.rows);
  } else {
    outcome.status.Update(ResetCounters(decoder_, &executor()));
  }
  if (draft_model_ != nullptr) outcome.status.Update(draft_model_->Wait());
  if (!outcome.status.ok()) {
    outcome.rows.clear();
  } else if (!info_.clock.empty()) {
    outcome.step_ms = LastStepMs();
    outcome.gap_ms = LastGapMs();
  }
  return outcome;
}

double MegakernelRunner::LastStepMs() const {
  const double drafts = draft_model_ != nullptr ? draft_model_->LastStepsMs() : 0;
  return drafts + backend_.executor->LastStepMs();
}

double MegakernelRunner::LastGapMs() const {
  const double gap = backend_.executor->LastGapMs();
  // The draft model's steps run between two of the target's, on the same stream.
  const double drafts = draft_model_ != nullptr ? draft_model_->LastStepsMs() : 0;
  return gap < 0 ? gap : std::max(0.0, gap - drafts);
}

absl::Status MegakernelRunner::ReadResults(const Flight& flight, std::vector<RowResult>* rows) {
  std::vector<StepResult> results(flight.rows.size());
  RETURN_IF_ERROR(executor().Read(results_[flight.bank], 0, results.data(),
                                  static_cast<int64_t>(results.size() * sizeof(StepResult))));
  for (size_t i = 0; i < results.size(); ++i) {
    const Row& row = flight.rows[i];
    const StepResult& result = results[i];
    if (result.slot != row.slot || result.count > kMaxDraftTokens + 1 ||
        result.accepted > result.count) {
      return absl::InternalError(absl::StrCat("step ", flight.step, ", row ", i,
                                              ": the device's result is of slot ", result.slot,
                                              ", not of ", row.slot));
    }
    RowResult out;
    out.slot = row.slot;
    out.query_length = result.query_length;
    out.accepted = result.accepted;
    out.tokens.assign(result.tokens, result.tokens + result.count);
    out.finished = result.finish != kSlotRunning;
    out.no_number = result.finish == kSlotNoNumber;
    rows->push_back(std::move(out));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<float>> MegakernelRunner::Logits(int first, int count) {
  if (!flights_.empty()) {
    return absl::FailedPreconditionError("logits are read while no step is in flight");
  }
  if (first < 0 || count < 0 || first > decoder_.limits.max_outputs - count) {
    return absl::OutOfRangeError(
        absl::StrCat("outputs ", first, " + ", count, " of ", decoder_.limits.max_outputs));
  }
  if (count == 0) return std::vector<float>();
  // In one copy, padding included: rows are then moved together.
  const int64_t vocab = info_.vocab_size, stride = decoder_.logits_stride;
  std::vector<float> logits((count - 1) * stride + vocab);
  const Buffer buffer = executor().TensorBuffer(decoder_.logits);
  RETURN_IF_ERROR(executor().Read(buffer, first * stride * 4, logits.data(),
                                  static_cast<int64_t>(logits.size() * 4)));
  for (int i = 1; i < count; ++i) {
    std::copy_n(logits.begin() + i * stride, vocab, logits.begin() + i * vocab);
  }
  logits.resize(count * vocab);
  return logits;
}

absl::Status MegakernelRunner::SetExitThresholds(std::span<const float> thresholds) {
  if (!decoder_.HasExits() ||
      thresholds.size() != static_cast<size_t>(decoder_.config.layers)) {
    return absl::InvalidArgumentError(absl::StrCat(thresholds.size(),
                                                   " thresholds; a model with early exit takes one "
                                                   "for each of its layers"));
  }
  return executor().Write(executor().TensorBuffer(decoder_.exit_thresholds), 0, thresholds.data(),
                          static_cast<int64_t>(thresholds.size_bytes()));
}

absl::StatusOr<std::vector<uint64_t>> MegakernelRunner::TokensLeft() {
  if (!decoder_.HasExits()) return std::vector<uint64_t>();
  if (!flights_.empty()) return absl::FailedPreconditionError("tokens that left are read while no step is in flight");
  std::vector<uint64_t> left(static_cast<size_t>(decoder_.config.layers));
  RETURN_IF_ERROR(executor().Read(executor().TensorBuffer(decoder_.exit_totals), 0, left.data(),
                                  static_cast<int64_t>(left.size() * sizeof(left[0]))));
  return left;
}

absl::StatusOr<std::vector<int>> MegakernelRunner::TokensOfLayers() {
  if (!decoder_.HasExits() || !flights_.empty()) {
    return absl::FailedPreconditionError(
        "a layer's tokens are read of models with early exit, while no step is in flight");
  }
  const Buffer buffer = executor().TensorBuffer(decoder_.exit_counts);
  std::vector<i32> counts(static_cast<size_t>(buffer.bytes) / sizeof(i32));
  RETURN_IF_ERROR(executor().Read(buffer, 0, counts.data(), buffer.bytes));
  return eventide::TokensOfLayers(decoder_, counts);
}

}  // namespace eventide
