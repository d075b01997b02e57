#include "serve/engine.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/status.h"
#include "serve/engine_state.h"
#include "serve/hash.h"

namespace eventide {
namespace {

// `wanted` or, when 0, all that the runner offers.
absl::StatusOr<uint64_t> Within(const char* name, uint64_t wanted, uint64_t offered) {
  if (wanted == 0) return offered;
  if (wanted > offered) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is ", wanted, ", but the model was built for at most ", offered));
  }
  return wanted;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(StepRunner* runner, Clock* clock,
                                                       EngineOptions options) {
  const RunnerInfo& info = runner->info();
  BatchLimits limits;
  ASSIGN_OR_RETURN(limits.max_num_seqs,
                   Within("max_num_seqs", options.max_num_seqs, info.max_slots));
  ASSIGN_OR_RETURN(
      limits.max_num_batched_tokens,
      Within("max_num_batched_tokens", options.max_num_batched_tokens, info.max_batched_tokens));
  ASSIGN_OR_RETURN(limits.max_model_len,
                   Within("max_model_len", options.max_model_len, info.max_model_len));
  ASSIGN_OR_RETURN(uint64_t in_flight, Within("max_steps_in_flight", options.max_steps_in_flight,
                                              info.max_steps_in_flight));
  if (in_flight != 1 && in_flight != 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_steps_in_flight is ", in_flight, "; it must be 1 or 2"));
  }
  if (options.draft_tokens > info.max_draft_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("draft_tokens is ", options.draft_tokens,
                                                   ", but the model was built for at most ",
                                                   info.max_draft_tokens));
  }
  options.max_steps_in_flight = static_cast<uint32_t>(in_flight);
  limits.block_size = info.block_size;
  limits.draft_tokens = options.draft_tokens;
  // Every row may want one token's logits; what is left is for drafts.
  if (info.max_outputs > limits.max_num_seqs) {
    limits.max_step_drafts = info.max_outputs - limits.max_num_seqs;
  } else if (info.max_outputs > 0) {
    limits.max_step_drafts = 0;
  }
  limits.max_prefill_chunk = options.max_prefill_chunk;
  RETURN_IF_ERROR(ValidateLimits(limits));
  ASSIGN_OR_RETURN(BlockPool pool, BlockPool::Create(info.num_blocks, info.block_size));
  return std::unique_ptr<Engine>(
      new Engine(runner, clock, std::move(options), limits, std::move(pool)));
}

Engine::Engine(StepRunner* runner, Clock* clock, EngineOptions options, BatchLimits limits,
               BlockPool pool)
    : runner_(runner),
      clock_(clock),
      options_(std::move(options)),
      limits_(limits),
      cache_(std::move(pool), options_.prefix_cache) {
  for (uint32_t slot = limits.max_num_seqs; slot-- > 0;) free_slots_.push_back(slot);
}

Engine::~Engine() {
  for (size_t i = 0; i < flights_.size(); ++i) runner_->Wait();
}

uint64_t Engine::MaxLength(const Request& request) const {
  return std::min(request.prompt.size() + uint64_t{request.sampling.max_tokens},
                  limits_.max_model_len);
}

absl::Status Engine::CheckAcceptable(const Request& request) const {
  RETURN_IF_ERROR(ValidateRequest(request));
  const std::string name = absl::StrCat("request '", request.id, "'");
  const uint32_t vocab_size = runner_->info().vocab_size;
  for (TokenId token : request.prompt) {
    if (static_cast<uint32_t>(token) < vocab_size) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": prompt token ", token, " is outside the vocabulary of ", vocab_size));
  }
  if (request.prompt.size() >= limits_.max_model_len) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, ": a prompt of ", request.prompt.size(), " tokens leaves no room for an answer in ",
        limits_.max_model_len, " (max_model_len); shorten it"));
  }
  const uint64_t needed = MostBlocks(MaxLength(request), limits_.block_size);
  if (needed > cache_.capacity()) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, ": ", MaxLength(request), " tokens need ", needed, " KV blocks, the pool has ",
        cache_.capacity(), "; lower max_tokens or raise num_blocks"));
  }
  if (!request.sampling.stop_strings.empty() && !options_.text_sink) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": stop strings need a tokenizer, and this engine runs without one"));
  }
  if (request.priority != 0 && options_.scheduling_policy != SchedulingPolicy::kPriority) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": priority is ", request.priority,
                     ", but this engine serves in order of arrival (scheduling policy fcfs)"));
  }
  if (live_.contains(request.id)) {
    return absl::AlreadyExistsError(absl::StrCat(name, ": the id is in use"));
  }
  if (waiting_.size() >= options_.max_queued_requests) {
    return absl::ResourceExhaustedError(absl::StrCat(name, ": the queue is full (", waiting_.size(),
                                                     " requests); try again later"));
  }
  return absl::OkStatus();
}

absl::Status Engine::AddRequest(Request request, OutputCallback callback) {
  if (absl::Status status = CheckAcceptable(request); !status.ok()) {
    ++stats_.refused;
    return status;
  }
  auto entry = std::make_unique<Entry>();
  if (options_.text_sink) {
    absl::StatusOr<std::unique_ptr<TextSink>> sink = options_.text_sink(request);
    if (!sink.ok()) {
      ++stats_.refused;
      return sink.status();
    }
    entry->sink = *std::move(sink);
  }
  entry->order = {request.priority, next_sequence_++};
  entry->key = request.sampling.seed.value_or(CombineHash(options_.seed, HashBytes(request.id)));
  entry->max_length = MaxLength(request);
  entry->min_length =
      std::min(request.prompt.size() + uint64_t{request.sampling.min_tokens}, entry->max_length);
  entry->stop_tokens = request.sampling.stop_token_ids;
  if (!request.sampling.ignore_eos) {
    const std::vector<TokenId>& eos = runner_->info().eos_tokens;
    entry->stop_tokens.insert(entry->stop_tokens.begin(), eos.begin(), eos.end());
  }
  entry->history = request.prompt;
  entry->arrival_ns = request.arrival_ns.value_or(clock_->NowNs());
  entry->callback = std::move(callback);
  entry->request = std::move(request);
  ++stats_.accepted;
  stats_.prompt_tokens += entry->request.prompt.size();
  live_[entry->request.id] = entry.get();
  waiting_[entry->order] = std::move(entry);
  return absl::OkStatus();
}

absl::Status Engine::Cancel(const std::string& id) {
  auto it = live_.find(id);
  if (it == live_.end()) {
    return absl::NotFoundError(absl::StrCat("request '", id, "' is unknown or has ended already"));
  }
  Finish(it->second, FinishReason::kAbort, absl::CancelledError("cancelled"), {});
  FlushOutputs();
  return absl::OkStatus();
}

void Engine::CancelAll() {
  std::map<OrderKey, std::string> ids;  // in order, so that runs repeat
  for (const auto& [id, entry] : live_) ids[entry->order] = id;
  for (const auto& [order, id] : ids) {
    if (!Cancel(id).ok()) continue;  // a callback may have cancelled it
  }
}

absl::Status Engine::Step() {
  while (!flights_.empty()) {
    std::optional<StepOutcome> outcome = runner_->Poll();
    if (!outcome) break;
    Retire(*outcome);
  }
  bool changed = false;
  const size_t before = flights_.size();
  if (before < options_.max_steps_in_flight) changed = SubmitNext();
  const bool submitted = flights_.size() > before;
  if (!flights_.empty() && (!submitted || flights_.size() == options_.max_steps_in_flight)) {
    Retire(runner_->Wait());
    changed = true;
  }
  const bool stuck = !changed && flights_.empty() && !live_.empty();
  absl::Status status;
  if (stuck) {
    status = absl::InternalError(
        absl::StrCat("no request can be scheduled: ", waiting_.size(), " wait, ", running_.size(),
                     " run, ", cache_.available_blocks(), " of ", cache_.capacity(),
                     " KV blocks and ", free_slots_.size(), " slots are free"));
  }
  FlushOutputs();
  return status;
}

void Engine::Drain() {
  while (!flights_.empty()) Retire(runner_->Wait());
  FlushOutputs();
}

// A callback may call the engine again: the outermost call hands out what that adds, in order.
void Engine::FlushOutputs() {
  if (flushing_) return;
  flushing_ = true;
  while (!outputs_.empty()) {
    auto [callback, output] = std::move(outputs_.front());
    outputs_.pop_front();
    if (callback) callback(output);
  }
  flushing_ = false;
}

EngineStats Engine::stats() const {
  EngineStats stats = stats_;
  stats.queued = waiting_.size();
  stats.running = live_.size();
  stats.running -= waiting_.size();
  stats.kv_blocks = cache_.capacity();
  stats.kv_blocks_used = cache_.held_blocks();
  stats.kv_blocks_cached = cache_.idle_blocks();
  stats.evicted_blocks = cache_.evictions();
  stats.distinct_shapes = shapes_.count();
  return stats;
}

absl::Status Engine::CheckIntegrity() const {
  std::vector<const KvTable*> tables;
  std::vector<uint32_t> slots = free_slots_;
  size_t live = waiting_.size();
  for (const auto& entry : running_) {
    tables.push_back(&entry->kv);
    slots.push_back(entry->slot);
    live += !entry->leaving || entry->returning;
    uint64_t rows = 0;
    for (const auto& flight : flights_) {
      rows += std::count(flight->entries.begin(), flight->entries.end(), entry.get());
    }
    if (rows != entry->unretired_rows || (entry->leaving && rows == 0)) {
      return absl::InternalError(absl::StrCat("slot ", entry->slot, " has ", rows,
                                              " rows in flight, ", entry->unretired_rows,
                                              " counted"));
    }
  }
  RETURN_IF_ERROR(cache_.CheckIntegrity(tables));
  if (live != live_.size()) {
    return absl::InternalError(
        absl::StrCat(live_.size(), " requests without outcome, but ", live, " wait or run"));
  }
  std::sort(slots.begin(), slots.end());
  for (uint32_t i = 0; i < slots.size(); ++i) {
    if (slots[i] != i)
      return absl::InternalError(absl::StrCat("slot ", i, " is lost or used twice"));
  }
  if (slots.size() != limits_.max_num_seqs) return absl::InternalError("slots are lost");
  for (const auto& [order, entry] : waiting_) {
    if (entry->has_slot || !entry->kv.blocks.empty() || entry->unretired_rows != 0) {
      return absl::InternalError(
          absl::StrCat("request '", entry->request.id, "' waits but holds a slot or blocks"));
    }
  }
  return absl::OkStatus();
}

}  // namespace eventide
