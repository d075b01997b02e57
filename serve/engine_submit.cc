// Engine: from the queues to a step on its way.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/status.h"
#include "serve/engine_state.h"

namespace eventide {

Engine::Coming Engine::PromptsInPrefill() const {
  Coming coming;
  if (!options_.prefix_cache.enabled) return coming;
  for (const auto& entry : running_) {
    const uint64_t next = (entry->kv.published + 1) * limits_.block_size;
    if (entry->leaving || entry->kv.diverged || next > entry->prefill_target) continue;
    coming.try_emplace(cache_.NextKey(entry->kv, entry->history), entry.get());
  }
  return coming;
}

// Whether somebody before this request prefills at least half of what it still needs: then waiting
// for that costs less than computing it twice. If not, others may wait for this one.
bool Engine::IsHeld(const Entry& entry, Coming* coming) const {
  const uint64_t known = entry.match.blocks * limits_.block_size;
  const uint64_t needed = entry.history.size() - known;
  if (!options_.prefix_cache.enabled || needed <= limits_.block_size) return false;
  const auto [it, first] = coming->try_emplace(cache_.NextKey(entry.match, entry.history), &entry);
  // Never behind a younger one, which may have to wait itself.
  if (first || entry.order < it->second->order) return false;
  const auto mine = std::span(entry.history).subspan(known);
  const auto others = std::span(it->second->history).subspan(known);
  const auto common = static_cast<uint64_t>(std::ranges::mismatch(mine, others).in1 - mine.begin());
  return 2 * (common / limits_.block_size * limits_.block_size) >= needed;
}

// Those of the queue who may join, as far as slots and blocks can go: looking up prefixes costs
// time.
std::vector<WaitingView> Engine::WaitingViews() {
  std::vector<WaitingView> views;
  Coming coming = PromptsInPrefill();
  uint64_t blocks = 0, slots = 0;
  for (const auto& [order, entry] : waiting_) {
    if (slots == free_slots_.size() || blocks > cache_.available_blocks()) break;
    if (views.size() == limits_.max_num_seqs) break;
    // At least one token is computed: its logits are needed.
    const uint64_t most = (entry->history.size() - 1) / limits_.block_size;
    cache_.Find(entry->history, most, &entry->match);
    views.push_back({.order = order,
                     .tokens = entry->history.size(),
                     .cached_tokens = entry->match.blocks * limits_.block_size,
                     .idle_blocks = cache_.IdleBlocks(entry->match),
                     .max_length = entry->max_length,
                     .held = IsHeld(*entry, &coming)});
    if (views.back().held) continue;
    blocks += JoiningBlocks(views.back(), limits_);
    ++slots;
  }
  return views;
}

BatchPlan Engine::Plan() {
  std::vector<RunningView> running;
  running.reserve(running_.size());
  for (const auto& entry : running_) {
    running.push_back({.order = entry->order,
                       .history = entry->history.size(),
                       .prefill_target = entry->prefill_target,
                       .prefill_submitted = entry->prefill_submitted,
                       .unretired_samples = entry->unretired_samples,
                       .max_length = entry->max_length,
                       .blocks = entry->kv.blocks.size(),
                       .shared_blocks = cache_.SharedBlocks(entry->kv),
                       .leaving = entry->leaving,
                       .returning = entry->returning,
                       .unretired = entry->unretired_rows != 0});
  }
  return NextBatch(WaitingViews(), running, cache_.available_blocks(), free_slots_.size(), limits_);
}

bool Engine::SubmitNext() {
  const BatchPlan plan = Plan();
  if (plan.rows.empty() && plan.preempted.empty()) return false;
  std::unique_ptr<Flight> flight = BuildFlight(plan);
  if (flight->rows.empty()) return true;
  ++stats_.steps;
  absl::Status status = runner_->Submit(
      {.step = flight->step, .rows = flight->rows, .block_updates = flight->updates});
  if (status.ok()) {
    flights_.push_back(std::move(flight));
    return true;
  }
  ++stats_.failed_steps;
  for (size_t i = 0; i < flight->rows.size(); ++i) {
    Entry* entry = flight->entries[i];
    --entry->unretired_rows;
    entry->unretired_samples -= flight->rows[i].sampling == kRowSample;
    Finish(entry, FinishReason::kError, status, {});
  }
  return true;
}

// Makes the plan real: preempts, admits, allocates, and counts each row as in flight.
std::unique_ptr<Engine::Flight> Engine::BuildFlight(const BatchPlan& plan) {
  // The plan's indices hold until the first preemption or admission: look all of them up before.
  std::vector<Entry*> waiting;
  for (const auto& [order, entry] : waiting_) {
    if (waiting.size() == limits_.max_num_seqs) break;
    waiting.push_back(entry.get());
  }
  std::vector<Entry*> entries;
  for (const PlannedRow& row : plan.rows) {
    entries.push_back(row.admitted ? waiting[row.index] : running_[row.index].get());
  }
  std::vector<Entry*> preempted;
  for (size_t index : plan.preempted) preempted.push_back(running_[index].get());
  for (Entry* entry : preempted) Preempt(entry);
  // All prefixes are taken before the first block is allocated, which might evict them.
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    if (plan.rows[i].admitted && !AdmitWaiting(entries[i])) entries[i] = nullptr;
  }

  auto flight = std::make_unique<Flight>();
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    if (entries[i] != nullptr) AllocateRow(plan.rows[i], entries[i], flight.get());
  }
  if (!flight->rows.empty()) {
    flight->step = next_step_++;
    flight->after_pause = std::exchange(paused_, false);
  }
  return flight;
}

void Engine::AllocateRow(const PlannedRow& planned, Entry* entry, Flight* flight) {
  const size_t first = planned.admitted ? 0 : entry->kv.blocks.size();
  EVT_CHECK(cache_.Allocate(planned.new_blocks, &entry->kv));
  if (entry->kv.blocks.size() != first) {
    flight->updates.push_back({.slot = entry->slot,
                               .first = static_cast<uint32_t>(first),
                               .blocks = std::span(entry->kv.blocks).subspan(first)});
  }
  flight->rows.push_back({.slot = entry->slot,
                          .query_length = planned.decode ? kDeviceKnows : planned.query_length,
                          .draft_length = planned.draft_length,
                          .sampling = planned.sample ? u32{kRowSample} : u32{kRowNone}});
  flight->entries.push_back(entry);
  if (!planned.decode) entry->prefill_submitted += planned.query_length;
  ++entry->unretired_rows;
  entry->unretired_samples += planned.sample;
}

// False: the runner refused, and the request has ended.
bool Engine::AdmitWaiting(Entry* entry) {
  EVT_CHECK(!free_slots_.empty());
  const size_t stops = std::min<size_t>(entry->stop_tokens.size(), kMaxStopTokens);
  const SamplingParams& sampling = entry->request.sampling;
  const uint64_t cached = entry->match.blocks * limits_.block_size;
  absl::Status status =
      runner_->Admit({.slot = free_slots_.back(),
                      .tokens = entry->history,
                      .prompt_length = static_cast<uint32_t>(entry->request.prompt.size()),
                      .cached_tokens = static_cast<uint32_t>(cached),
                      .max_length = static_cast<uint32_t>(entry->max_length),
                      .min_length = static_cast<uint32_t>(entry->min_length),
                      .key = entry->key,
                      .temperature = sampling.temperature,
                      .top_p = sampling.top_p,
                      .top_k = sampling.top_k,
                      .draft_tokens = limits_.draft_tokens,
                      .adapt_draft_tokens = options_.adapt_draft_tokens,
                      .stop_tokens = std::span(entry->stop_tokens).first(stops)});
  if (!status.ok()) {
    Finish(entry, FinishReason::kError, status, {});
    return false;
  }
  auto node = waiting_.extract(entry->order);
  running_.push_back(std::move(node.mapped()));
  entry->has_slot = true;
  entry->slot = free_slots_.back();
  free_slots_.pop_back();
  entry->prefill_target = entry->history.size();
  entry->prefill_submitted = cached;
  entry->device_history = entry->history.size();
  entry->device_context = cached;
  entry->kv_tokens = cached;
  cache_.Share(entry->match, &entry->kv);
  if (entry->admitted_once) {
    stats_.resumed_hit_tokens += cached;
    return true;
  }
  entry->admitted_once = true;
  entry->cached_tokens = cached;
  stats_.prefix_query_tokens += entry->request.prompt.size();
  stats_.prefix_hit_tokens += cached;
  return true;
}

// Preemption by recomputation: the request waits again and is prefilled with all its tokens, but
// for those whose blocks nobody has needed in the meantime. What it was going to sample depends on
// its key and positions only, so its output stays the same.
void Engine::Preempt(Entry* entry) {
  ++stats_.preemptions;
  entry->leaving = true;
  entry->returning = true;
  Settle(entry);
}

}  // namespace eventide
