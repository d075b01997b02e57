#include "serve/draft_model.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "core/status.h"

namespace eventide {

absl::Status DraftModel::CheckFits(const ModelConfig& target, const ModelConfig& draft) {
  if (target.vocab == draft.vocab) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the draft model has a vocabulary of ", draft.vocab, " tokens and the model one of ",
                   target.vocab, ": drafts are token ids, so both must have the same; choose a draft "
                   "model of the same family"));
}

DecoderLimits DraftModel::LimitsBeside(DecoderLimits limits, const ModelConfig& draft) {
  limits.max_model_len = std::min(limits.max_model_len, draft.max_positions);
  // A row takes a token more than the target's that carries no drafts.
  limits.max_tokens += limits.max_rows;
  limits.max_outputs = limits.max_rows;
  limits.route_draws = 0;
  return limits;
}

absl::StatusOr<std::unique_ptr<DraftModel>> DraftModel::Create(const WeightSource& source,
                                                               const LoadOptions& options,
                                                               const DraftTarget& target) {
  RETURN_IF_ERROR(CheckFits(target.decoder->config, source.config()));
  LoadOptions load = options;
  load.backend.beside = target.backend;
  load.limits = LimitsBeside(load.limits, source.config());
  ASSIGN_OR_RETURN(LoadedDecoder loaded, LoadDecoder(source, load));
  std::unique_ptr<DraftModel> model(new DraftModel(std::move(loaded), target));
  RETURN_IF_ERROR(InPhase(options.backend.phases, "kv_alloc", [&] { return model->Allocate(); }));
  return model;
}

absl::Status DraftModel::Allocate() {
  const int64_t slots = decoder_.limits.max_rows;
  slots_.resize(static_cast<size_t>(slots));
  ASSIGN_OR_RETURN(states_, executor().AllocateBuffer(slots * int64_t{sizeof(SlotState)}));
  ASSIGN_OR_RETURN(rows_, executor().AllocateBuffer(2 * slots * int64_t{sizeof(Row)}));
  // What a step reports is in the history already: nobody reads it here.
  ASSIGN_OR_RETURN(results_, executor().AllocateBuffer(slots * int64_t{sizeof(StepResult)}));
  return absl::OkStatus();
}

absl::Status DraftModel::Admit(uint32_t slot, SlotState* verifies) {
  Slot& mine = slots_[slot];
  const int64_t offset = int64_t{slot} * int64_t{sizeof(SlotState)};
  verifies->role = kSlotVerifies;
  verifies->partner = states_.address + static_cast<uint64_t>(offset);
  // Its drafts are this model's: it looks none up.
  verifies->draft_limit = verifies->draft_length = 0;
  SlotState state = {};
  state.history = verifies->history;
  state.history_length = verifies->history_length;
  state.context_length = verifies->context_length;
  state.prompt_length = verifies->prompt_length;
  // One token follows the last that it has a position for.
  state.max_length = std::min(verifies->max_length, static_cast<u32>(decoder_.limits.max_model_len) + 1);
  // Drafts are drawn as the target draws, from the same random numbers: greedy where it is.
  state.key = verifies->key;
  state.temperature = verifies->temperature;
  state.top_k = verifies->top_k;
  state.top_p = verifies->top_p;
  state.role = kSlotDrafts;
  state.partner = target_.slots + static_cast<uint64_t>(offset);
  mine = {true, state.max_length, state.context_length};
  return executor().Write(states_, offset, &state, sizeof(state));
}

absl::Status DraftModel::SetContext(uint32_t slot, uint32_t length) {
  if (!slots_[slot].drafts) return absl::OkStatus();
  static_assert(offsetof(SlotState, context_length) == offsetof(SlotState, history_length) + 4);
  const u32 lengths[2] = {length, length - 1};
  const u64 pace = length < slots_[slot].max_length ? 0 : kPaceEnded;
  const u32 finish = pace == 0 ? kSlotRunning : kSlotLength;
  const int64_t state = int64_t{slot} * int64_t{sizeof(SlotState)};
  RETURN_IF_ERROR(executor().Write(states_, state + int64_t{offsetof(SlotState, history_length)},
                                   lengths, sizeof(lengths)));
  RETURN_IF_ERROR(executor().Write(states_, state + int64_t{offsetof(SlotState, finish)}, &finish,
                                   sizeof(finish)));
  return executor().Write(states_, state + int64_t{offsetof(SlotState, pace)}, &pace, sizeof(pace));
}

DraftModel::Rows DraftModel::RowsFor(std::span<const Row> target_rows) {
  Rows rows;
  std::vector<Row> later;
  for (Row row : target_rows) {
    Slot& slot = slots_[row.slot];
    if (!slot.drafts) continue;
    if (row.query_length == kDeviceKnows) {
      if (row.draft_length > 1) later.push_back(row);
      row.sampling = row.draft_length > 0 ? kRowSample | kRowKnown : kRowKnown;
      row.draft_length = 1;  // known tokens before the last
    } else {
      const auto most = static_cast<uint32_t>(decoder_.limits.max_model_len);
      const uint32_t left = most - std::min(most, slot.prefilled);
      slot.prefilled += row.query_length;
      row.query_length = std::min(row.query_length, left);
      row.sampling = kRowNone;
      if (left == 0) continue;
    }
    rows.all.push_back(row);
  }
  rows.first = rows.all.size();
  std::ranges::stable_sort(later, std::ranges::greater(), &Row::draft_length);
  for (size_t count = later.size(), step = 2; count > 0; ++step) {
    while (count > 0 && later[count - 1].draft_length < step) --count;
    if (count > 0) rows.later.push_back(static_cast<uint32_t>(count));
  }
  for (Row& row : later) {
    row.draft_length = 0;
    row.sampling = kRowSample | kRowKnown;
    rows.all.push_back(row);
  }
  return rows;
}

StepHeader DraftModel::Header(uint64_t rows, size_t count) const {
  StepHeader header = {};
  header.rows = static_cast<u32>(count);
  header.rows_capacity = static_cast<u32>(slots_.size());
  header.rows_ptr = rows;
  header.block_table_ptr = target_.tables;
  header.slot_state_ptr = states_.address;
  header.results_ring_ptr = results_.address;
  header.blocks_per_slot = target_.blocks_per_slot;
  header.symbols[0] = static_cast<i32>(count);
  header.symbols[1] = kSumOfRows;
  return header;
}

absl::Status DraftModel::Submit(std::span<const Row> target_rows) {
  const Rows rows = RowsFor(target_rows);
  if (rows.first > 0) {
    // One buffer for all steps in flight: copies wait for the steps before them.
    RETURN_IF_ERROR(executor().Write(rows_, 0, rows.all.data(),
                                     static_cast<int64_t>(rows.all.size() * sizeof(Row))));
    std::vector<StepHeader> headers = {Header(rows_.address, rows.first)};
    const uint64_t behind = rows_.address + rows.first * sizeof(Row);
    for (const uint32_t count : rows.later) headers.push_back(Header(behind, count));
    RETURN_IF_ERROR(executor().SubmitAll(headers));
  }
  flights_.push_back(rows.first > 0);
  return absl::OkStatus();
}

absl::Status DraftModel::Wait() {
  EVT_CHECK(!flights_.empty());
  const bool ran = flights_.front();
  flights_.pop_front();
  last_ms_ = 0;
  if (!ran) return absl::OkStatus();
  absl::Status status = executor().Wait();
  if (!status.ok()) {
    status.Update(ResetCounters(decoder_, &executor()));
    return absl::Status(status.code(), absl::StrCat("the draft model: ", status.message()));
  }
  last_ms_ = executor().LastStepMs();
  return absl::OkStatus();
}

}  // namespace eventide
