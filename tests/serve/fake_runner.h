// A StepRunner without a model that behaves like the device: token history per slot, KV in blocks,
// late results, clamping, drafts that may be wrong; and nastier: random latency, injected failures,
// and an abort with a reason whenever the host breaks the contract of serve/step.h.
//
// The "model": the KV of position p is a hash of the tokens 0 … p, written into the block that the
// table names. A token is a hash of all KV that it may see and of the request's key, so a block
// that was given away too early, lost, overwritten or found under a wrong prefix changes the
// output. Expected() says what must come out.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "serve/clock.h"
#include "serve/hash.h"
#include "serve/step.h"

namespace eventide {

struct FakeRunnerOptions {
  RunnerInfo info = {};
  uint64_t seed = 1;
  double late = 0.5;        // probability that Poll finds nothing although a step could have ended
  double step_failure = 0;  // of a step, after it has run in part
  double submit_failure = 0;
  double admit_failure = 0;
  double acceptance = 0.5;      // of each draft token
  int64_t step_ns = 1'000'000;  // of `clock`, for each step
  ManualClock* clock = nullptr;
  double step_ms = -1, gap_ms = -1;  // what StepOutcome says
  // Whether no logit behind this history is a number.
  std::function<bool(const std::vector<TokenId>&)> no_number = nullptr;
  bool tokens_depend_on_rows = false;  // a device whose tokens are not the request's alone
};

class FakeRunner final : public StepRunner {
 public:
  explicit FakeRunner(FakeRunnerOptions options)
      : options_(std::move(options)),
        random_(options_.seed),
        slots_(options_.info.max_slots),
        kv_(options_.info.num_blocks * options_.info.block_size) {}

  // The tokens that follow `prompt`, up to max_length in all, whatever the batch.
  static std::vector<TokenId> Expected(std::vector<TokenId> prompt, uint64_t key,
                                       uint64_t max_length, uint64_t min_length,
                                       const std::set<TokenId>& stops, uint32_t vocab_size) {
    std::vector<TokenId> out;
    uint64_t prefix = 0, sum = 0;
    for (TokenId token : prompt) sum += prefix = CombineHash(prefix, static_cast<uint64_t>(token));
    while (prompt.size() + out.size() < max_length) {
      TokenId token = static_cast<TokenId>(CombineHash(key, sum) % vocab_size);
      out.push_back(token);
      sum += prefix = CombineHash(prefix, static_cast<uint64_t>(token));
      if (stops.contains(token) && prompt.size() + out.size() >= min_length) break;
    }
    return out;
  }

  const RunnerInfo& info() const override { return options_.info; }

  absl::Status Admit(const SlotAdmission& a) override {
    Require(a.slot < slots_.size() && !slots_[a.slot].used, "Admit of a slot in use");
    Require(!InFlight(a.slot), "Admit of a slot with rows in flight");
    Require(!a.tokens.empty() && a.tokens.size() < a.max_length, "Admit of a finished request");
    Require(a.max_length <= options_.info.max_model_len, "Admit beyond max_model_len");
    Require(a.stop_tokens.size() <= kMaxStopTokens, "Admit with too many stop tokens");
    Require(a.cached_tokens < a.tokens.size() && a.cached_tokens % options_.info.block_size == 0,
            "Admit with cached tokens that are not full blocks");
    if (Chance(options_.admit_failure)) return absl::UnavailableError("injected: admit");
    Slot& slot = slots_[a.slot];
    slot = Slot{};
    slot.used = true;
    slot.history.assign(a.tokens.begin(), a.tokens.end());
    slot.context = a.cached_tokens;
    slot.max_length = a.max_length;
    slot.min_length = a.min_length;
    slot.key = a.key;
    slot.stops.insert(a.stop_tokens.begin(), a.stop_tokens.end());
    return absl::OkStatus();
  }

  absl::Status Submit(const StepInput& input) override {
    Require(queue_.size() < options_.info.max_steps_in_flight, "too many steps in flight");
    Require(input.rows.size() <= options_.info.max_slots, "number of rows");
    std::set<uint32_t> seen;
    uint64_t tokens = 0;
    for (const Row& row : input.rows) {
      Require(row.slot < slots_.size() && slots_[row.slot].used, "row of a free slot");
      Require(!slots_[row.slot].reported, "row of a slot whose step is known to have failed");
      Require(seen.insert(row.slot).second, "two rows of one slot");
      Require(row.query_length != 0, "zero-length row");
      tokens += row.query_length == kDeviceKnows ? 1 + row.draft_length : row.query_length;
    }
    Require(tokens <= options_.info.max_batched_tokens, "token budget");
    for (const BlockTableUpdate& update : input.block_updates) {
      Require(seen.contains(update.slot), "blocks for a slot without a row");
      Require(update.first == slots_[update.slot].table.size(), "blocks are not appended");
      for (BlockId id : update.blocks) {
        Require(id < options_.info.num_blocks, "block id");
        slots_[update.slot].table.push_back(id);
      }
    }
    if (Chance(options_.submit_failure)) {
      for (const Row& row : input.rows) slots_[row.slot].broken = slots_[row.slot].reported = true;
      return absl::UnavailableError("injected: submit");
    }
    queue_.push_back({input.step, {input.rows.begin(), input.rows.end()}, {}, false});
    if (Chance(0.5)) RunAll();  // the device is early or late
    return absl::OkStatus();
  }

  std::optional<StepOutcome> Poll() override {
    if (queue_.empty() || Chance(options_.late)) return std::nullopt;
    return Wait();
  }

  StepOutcome Wait() override {
    Require(!queue_.empty(), "Wait without a step");
    RunAll();
    StepOutcome outcome = std::move(queue_.front().outcome);
    outcome.step_ms = options_.step_ms;
    outcome.gap_ms = options_.gap_ms;
    if (!outcome.status.ok()) {
      for (const Row& row : queue_.front().rows) slots_[row.slot].reported = true;
    }
    queue_.pop_front();
    if (options_.clock) options_.clock->Advance(options_.step_ns);
    return outcome;
  }

  void Release(uint32_t slot) override {
    Require(slot < slots_.size() && slots_[slot].used, "Release of a free slot");
    Require(!InFlight(slot), "Release of a slot with rows in flight");
    slots_[slot] = Slot{};
  }

  uint64_t used_slots() const {
    uint64_t used = 0;
    for (const Slot& slot : slots_) used += slot.used;
    return used;
  }
  bool idle() const { return queue_.empty(); }
  uint64_t skipped_rows() const { return skipped_rows_; }

 private:
  struct Slot {
    bool used = false, finished = false;
    bool broken = false;    // a step of it failed
    bool reported = false;  // and the host knows
    std::vector<TokenId> history;
    uint64_t context = 0, max_length = 0, min_length = 0, key = 0;
    std::set<TokenId> stops;
    std::vector<BlockId> table;
  };
  struct Queued {
    uint64_t step;
    std::vector<Row> rows;
    StepOutcome outcome;
    bool ran;
  };

  static void Require(bool condition, const char* what) {
    if (condition) return;
    std::fprintf(stderr, "the host broke the runner's contract: %s\n", what);
    std::abort();
  }
  bool Chance(double p) { return std::uniform_real_distribution<>(0, 1)(random_) < p; }
  bool InFlight(uint32_t slot) const {
    for (const Queued& queued : queue_) {
      for (const Row& row : queued.rows) {
        if (row.slot == slot) return true;
      }
    }
    return false;
  }

  uint64_t& Kv(const Slot& slot, uint64_t position) {
    const uint32_t size = options_.info.block_size;
    Require(position / size < slot.table.size(), "KV beyond the block table");
    return kv_[uint64_t{slot.table[position / size]} * size + position % size];
  }

  void RunAll() {
    for (Queued& queued : queue_) {
      if (queued.ran) continue;
      queued.ran = true;
      queued.outcome.step = queued.step;
      const bool fails = Chance(options_.step_failure);
      for (const Row& row : queued.rows) {
        if (fails && Chance(0.5)) continue;
        queued.outcome.rows.push_back(RunRow(row));
      }
      if (!fails) continue;
      for (const Row& row : queued.rows) slots_[row.slot].broken = true;
      queued.outcome.status = absl::InternalError("injected: the step was aborted");
      queued.outcome.rows.clear();
    }
  }

  RowResult RunRow(const Row& row) {
    Slot& slot = slots_[row.slot];
    RowResult result;
    result.slot = row.slot;
    result.finished = slot.finished;
    const bool decode = row.query_length == kDeviceKnows;
    if (slot.finished || slot.broken) {
      Require(decode || slot.broken, "prefill of a finished slot");
      ++skipped_rows_;
      return result;
    }
    const uint64_t end = decode ? slot.history.size() : slot.context + row.query_length;
    Require(end <= slot.history.size(), "prefill beyond the history");
    const bool sample = row.sampling == kRowSample;
    Require(sample == (end == slot.history.size()), "sampling flag");
    Require(!decode || slot.context + 1 == end, "decode before prefill is done");
    result.query_length = static_cast<uint32_t>(end - slot.context);
    for (uint64_t p = slot.context; p < end; ++p) Kv(slot, p) = Prefix(slot, p);
    slot.context = end;
    if (!sample) return result;

    // Drafts: written in place, rejected from the first wrong one.
    const uint64_t drafts = std::min<uint64_t>(row.draft_length, slot.max_length - 1 - end);
    for (uint64_t d = 0; d < drafts; ++d) Kv(slot, end + d) = random_();
    result.query_length += static_cast<uint32_t>(drafts);
    for (uint64_t d = 0; d <= drafts; ++d) {
      if (d > 0) {
        Kv(slot, slot.context) = Prefix(slot, slot.context);
        ++slot.context;
      }
      if (options_.no_number && options_.no_number(slot.history)) {
        slot.finished = result.no_number = true;
        break;
      }
      TokenId token = Sample(slot);
      slot.history.push_back(token);
      result.tokens.push_back(token);
      const uint64_t length = slot.history.size();
      slot.finished =
          (slot.stops.contains(token) && length >= slot.min_length) || length >= slot.max_length;
      if (slot.finished || !Chance(options_.acceptance)) break;
    }
    result.finished = slot.finished;
    return result;
  }

  // Hash of tokens 0 … p.
  uint64_t Prefix(const Slot& slot, uint64_t p) {
    uint64_t before = p == 0 ? 0 : Kv(slot, p - 1);
    return CombineHash(before, static_cast<uint64_t>(slot.history[p]));
  }

  TokenId Sample(const Slot& slot) {
    uint64_t sum = 0;
    for (uint64_t p = 0; p < slot.history.size(); ++p) sum += Kv(slot, p);
    if (options_.tokens_depend_on_rows) {
      for (const Slot& other : slots_) sum += other.used;
    }
    return static_cast<TokenId>(CombineHash(slot.key, sum) % options_.info.vocab_size);
  }

  FakeRunnerOptions options_;
  std::mt19937_64 random_;
  std::vector<Slot> slots_;
  std::vector<uint64_t> kv_;
  std::deque<Queued> queue_;
  uint64_t skipped_rows_ = 0;
};

}  // namespace eventide
