// Engine: from a retired step to tokens, outcomes and free blocks.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/status.h"
#include "serve/engine_state.h"

namespace eventide {
namespace {

// The runner's answer must be about the rows that were asked for; otherwise none of it is trusted.
absl::Status CheckOutcome(uint64_t step, std::span<const Row> rows, const StepOutcome& outcome) {
  if (!outcome.status.ok()) return outcome.status;
  if (outcome.step != step) {
    return absl::InternalError(
        absl::StrCat("the runner retired step ", outcome.step, ", expected ", step));
  }
  if (outcome.rows.size() != rows.size()) {
    return absl::InternalError(absl::StrCat("step ", step, " had ", rows.size(),
                                            " rows, the runner returned ", outcome.rows.size()));
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    if (outcome.rows[i].slot == rows[i].slot) continue;
    return absl::InternalError(absl::StrCat("step ", step, ", row ", i,
                                            ": the runner returned slot ", outcome.rows[i].slot,
                                            ", expected ", rows[i].slot));
  }
  return absl::OkStatus();
}

bool Contains(std::span<const TokenId> tokens, TokenId token) {
  return std::find(tokens.begin(), tokens.end(), token) != tokens.end();
}

}  // namespace

void Engine::Retire(const StepOutcome& outcome) {
  EVT_CHECK(!flights_.empty());
  const std::unique_ptr<Flight> flight = std::move(flights_.front());
  flights_.pop_front();
  const absl::Status status = CheckOutcome(flight->step, flight->rows, outcome);
  stats_.step_seconds += 1e-3 * std::max(0.0, outcome.step_ms);
  if (!flight->after_pause) stats_.idle_seconds += 1e-3 * std::max(0.0, outcome.gap_ms);
  if (status.ok()) {
    FollowDevice(*flight, outcome);
  } else {
    ++stats_.failed_steps;
  }
  for (size_t i = 0; i < flight->rows.size(); ++i) {
    Entry* entry = flight->entries[i];
    --entry->unretired_rows;
    entry->unretired_samples -= flight->rows[i].sampling == kRowSample;
    // A request with an outcome takes nothing more. One that is being preempted takes its tokens.
    if (entry->leaving && !entry->returning) {
      Settle(entry);
    } else if (!status.ok()) {
      Finish(entry, FinishReason::kError, status, {});
    } else {
      TakeRow(entry, flight->rows[i], outcome.rows[i]);
    }
  }
}

// What the device knows of the slots now; counts the step's shape.
void Engine::FollowDevice(const Flight& flight, const StepOutcome& outcome) {
  std::vector<ShapeCounter::RowShape> shape;
  for (size_t i = 0; i < flight.rows.size(); ++i) {
    const RowResult& result = outcome.rows[i];
    Entry* entry = flight.entries[i];
    if (result.query_length != 0) {
      if (flight.rows[i].query_length == kDeviceKnows) {
        entry->device_context = entry->device_history - 1;
      }
      entry->device_context += result.query_length;
      shape.push_back({result.query_length, entry->device_context});
      stats_.computed_tokens += result.query_length;
    }
    entry->device_history += result.tokens.size();
    // The last token of a history never has KV, nor have rejected drafts; in a draft model, nor has the last
    // of drafts that were all right.
    entry->kv_tokens = std::min(entry->device_context, entry->device_history - 1);
    if (flight.rows[i].query_length != kDeviceKnows) continue;
    stats_.drafts.Add(result);
    const bool all_right = result.accepted > 0 && result.accepted + 1 == result.query_length;
    entry->kv_tokens -= runner_->info().draft_model && all_right;
  }
  if (shape.empty()) return;  // only rows that had ended
  stats_.max_batch = std::max<uint64_t>(stats_.max_batch, shape.size());
  shapes_.Add(shape);
}

void Engine::TakeRow(Entry* entry, const Row& row, const RowResult& result) {
  const bool sampled = row.sampling == kRowSample;
  const size_t most = sampled ? 1 + size_t{row.draft_length} : 0;
  if (result.tokens.size() > most || (sampled && result.tokens.empty() && !result.no_number)) {
    Finish(entry, FinishReason::kError,
           absl::InternalError(absl::StrCat("slot ", row.slot, ": the runner returned ",
                                            result.tokens.size(), " tokens for a row that yields ",
                                            sampled ? 1 : 0, " to ", most)),
           {});
    return;
  }
  RequestOutput output;
  FinishReason reason = FinishReason::kNone;
  for (TokenId token : result.tokens) {
    if (token < 0 || static_cast<uint32_t>(token) >= runner_->info().vocab_size) {
      Finish(entry, FinishReason::kError,
             absl::InternalError(absl::StrCat("slot ", row.slot, ": the runner returned token ",
                                              token, ", outside the vocabulary")),
             std::move(output));
      return;
    }
    reason = TakeToken(entry, token, &output);
    if (reason != FinishReason::kNone) break;
  }
  if (reason != FinishReason::kNone) {
    absl::Status status = output.status;  // not OK for kError only
    Finish(entry, reason, std::move(status), std::move(output));
  } else if (result.no_number) {
    Finish(entry, FinishReason::kError,
           NoNumbers(absl::StrCat("request ", entry->request.id, ": behind ", entry->history.size(), " tokens")),
           std::move(output));
  } else if (result.finished) {
    Finish(
        entry, FinishReason::kError,
        absl::InternalError(absl::StrCat("slot ", row.slot, ": the runner ended the sequence at ",
                                         entry->history.size(), " tokens without a reason")),
        std::move(output));
  } else {
    if (!output.tokens.empty()) {
      Describe(*entry, &output);
      outputs_.emplace_back(entry->callback, std::move(output));
    }
    cache_.Publish(entry->FinalTokens(), &entry->kv);
    Settle(entry);
  }
}

FinishReason Engine::TakeToken(Entry* entry, TokenId token, RequestOutput* output) {
  const int64_t now_ns = clock_->NowNs();
  if (entry->output_tokens() == 0) entry->first_token_ns = now_ns;
  entry->last_token_ns = now_ns;
  entry->history.push_back(token);
  output->tokens.push_back(token);
  ++stats_.output_tokens;
  const uint64_t length = entry->history.size();
  // The token that ends a request by its id is not part of the text.
  if (length >= entry->min_length && Contains(entry->stop_tokens, token)) {
    if (entry->sink) output->text += entry->sink->Finish();
    return FinishReason::kStop;
  }
  if (entry->sink) {
    absl::StatusOr<TextDelta> delta = entry->sink->Append(token);
    if (!delta.ok()) {
      output->status = delta.status();
      return FinishReason::kError;
    }
    output->text += delta->text;
    if (delta->stopped) return FinishReason::kStop;
  }
  if (length < entry->max_length) return FinishReason::kNone;
  if (entry->sink) output->text += entry->sink->Finish();
  return FinishReason::kLength;
}

void Engine::Describe(const Entry& entry, RequestOutput* output) {
  output->id = entry.request.id;
  output->prompt_tokens = entry.request.prompt.size();
  output->cached_tokens = entry.cached_tokens;
  output->output_tokens = entry.output_tokens();
}

void Engine::Finish(Entry* entry, FinishReason reason, absl::Status status, RequestOutput output) {
  Describe(*entry, &output);
  output.finish_reason = reason;
  output.status = std::move(status);
  switch (reason) {
    case FinishReason::kStop:
      ++stats_.finished_stop;
      break;
    case FinishReason::kLength:
      ++stats_.finished_length;
      break;
    case FinishReason::kAbort:
      ++stats_.finished_abort;
      break;
    default:
      ++stats_.finished_error;
      entry->kv_lost = true;  // nothing is known for certain where a runner failed
  }
  const uint64_t tokens = entry->output_tokens();
  const auto seconds = [](int64_t from, int64_t to) {
    return 1e-9 * static_cast<double>(to - from);
  };
  if (tokens > 0) output.ttft_seconds = seconds(entry->arrival_ns, entry->first_token_ns);
  if (tokens > 1) {
    output.tpot_seconds =
        seconds(entry->first_token_ns, entry->last_token_ns) / static_cast<double>(tokens - 1);
  }
  if (reason == FinishReason::kStop || reason == FinishReason::kLength) {
    ttft_seconds_.push_back(output.ttft_seconds);
    if (tokens > 1) tpot_seconds_.push_back(output.tpot_seconds);
  }
  outputs_.emplace_back(std::move(entry->callback), std::move(output));
  live_.erase(entry->request.id);
  paused_ = paused_ || live_.empty();
  if (!entry->has_slot) {
    waiting_.erase(OrderKey(entry->order));  // a copy: the entry goes
    return;
  }
  entry->leaving = true;
  entry->returning = false;
  Settle(entry);
}

void Engine::Settle(Entry* entry) {
  if (!entry->leaving || entry->unretired_rows != 0) return;
  cache_.Release(entry->FinalTokens(), &entry->kv);
  runner_->Release(entry->slot);
  free_slots_.push_back(entry->slot);
  entry->has_slot = false;
  auto it = std::find_if(running_.begin(), running_.end(),
                         [&](const auto& other) { return other.get() == entry; });
  EVT_CHECK(it != running_.end());
  std::unique_ptr<Entry> owned = std::move(*it);
  running_.erase(it);
  if (!entry->returning) return;
  entry->leaving = false;
  entry->returning = false;
  waiting_[entry->order] = std::move(owned);
}

}  // namespace eventide
