#include "serve/batcher.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "core/status.h"

namespace eventide {
namespace {

uint64_t CeilDiv(uint64_t a, uint64_t b) {
  return (a + b - 1) / b;
}

// The last token of a request is sampled and never read: it has no KV.
uint64_t BlocksFor(uint64_t tokens, uint64_t max_length, uint32_t block_size) {
  return CeilDiv(std::min(tokens, max_length - 1), block_size);
}

// The state of one call: what is still free while rows are added one by one.
class Planner {
 public:
  Planner(std::span<const WaitingView> waiting, std::span<const RunningView> running,
          uint64_t free_blocks, uint64_t free_slots, const BatchLimits& limits)
      : waiting_(waiting),
        running_(running),
        limits_(limits),
        free_(free_blocks),
        slots_(free_slots),
        budget_(limits.max_num_batched_tokens),
        drafts_(limits.max_step_drafts),
        most_tokens_(1 + uint64_t{limits.draft_tokens}),
        out_(running.size()),
        order_(running.size()) {
    std::iota(order_.begin(), order_.end(), size_t{0});
    std::sort(order_.begin(), order_.end(),
              [&](size_t a, size_t b) { return running[a].order < running[b].order; });
    for (size_t i = 0; i < running.size(); ++i) {
      returning_ |= running[i].returning;
      // A request that must have ended by length gives its blocks back like one that is leaving.
      if (running[i].leaving || MustHaveEnded(running[i])) {
        out_[i] = true;
        pending_ += ComingBack(running[i]);
      }
    }
  }

  BatchPlan Plan() {
    for (size_t at = 0; at < order_.size(); ++at) AddDecode(at);
    for (size_t i : order_) OfferPrefill(i);
    // A preempted request is older than those who were never admitted: they must not overtake it.
    if (!plan_.stalled && !returning_ && plan_.preempted.empty()) OfferJoining();
    ShareBudget();
    for (const Prefill& prefill : prefills_) {
      if (prefill.row.query_length > 0) AddRow(prefill.row);
    }
    return std::move(plan_);
  }

 private:
  // A request that could use prefill tokens in this step.
  struct Prefill {
    PlannedRow row;
    OrderKey order;
    uint64_t remaining = 0;  // tokens to prefill
  };

  static uint64_t ComingBack(const RunningView& r) { return r.blocks - r.shared_blocks; }

  // Each unretired sampling row adds at least one token unless the request ended before.
  static bool MustHaveEnded(const RunningView& r) {
    return r.prefill_submitted == r.prefill_target &&
           r.history + r.unretired_samples >= r.max_length;
  }

  void AddRow(const PlannedRow& row) {
    EVT_CHECK(row.query_length > 0 && row.query_length <= budget_ && row.new_blocks <= free_);
    budget_ -= row.query_length;
    free_ -= row.new_blocks;
    drafts_ -= row.draft_length;
    plan_.tokens += row.query_length;
    plan_.rows.push_back(row);
  }

  void AddDecode(size_t at) {
    const size_t index = order_[at];
    const RunningView& r = running_[index];
    if (out_[index] || r.prefill_submitted < r.prefill_target || budget_ == 0) return;
    PlannedRow row = {.index = index, .decode = true, .sample = true};
    const uint64_t least = r.history + r.unretired_samples;  // length before this row, at least
    row.draft_length = static_cast<uint32_t>(
        std::min<uint64_t>({limits_.draft_tokens, r.max_length - 1 - least, budget_ - 1, drafts_}));
    row.query_length = 1 + row.draft_length;
    // The longest outcome of the unretired rows, then this row's own tokens.
    const uint64_t longest = r.history + r.unretired_samples * most_tokens_;
    row.new_blocks = BlocksFor(longest + row.draft_length, r.max_length, limits_.block_size);
    row.new_blocks = row.new_blocks > r.blocks ? row.new_blocks - r.blocks : 0;
    if (row.new_blocks != 0 && !MakeRoom(at, row.new_blocks)) {
      plan_.stalled = true;
      return;
    }
    AddRow(row);
  }

  // Frees blocks for the request at `at` in order by preempting younger ones. False: not this step.
  bool MakeRoom(size_t at, uint64_t needed) {
    if (plan_.stalled) return false;  // an older row has claimed whatever is free or coming
    for (size_t i = order_.size(); i-- > at + 1 && free_ + pending_ < needed;) {
      const size_t victim = order_[i];
      if (out_[victim]) continue;
      out_[victim] = true;
      plan_.preempted.push_back(victim);
      (running_[victim].unretired ? pending_ : free_) += ComingBack(running_[victim]);
    }
    return free_ >= needed;
  }

  void OfferPrefill(size_t index) {
    const RunningView& r = running_[index];
    if (out_[index] || r.prefill_submitted == r.prefill_target) return;
    prefills_.push_back({{.index = index}, r.order, r.prefill_target - r.prefill_submitted});
  }

  // Rule 2. The blocks of those who may join are set aside one after the other.
  void OfferJoining() {
    uint64_t left = free_;
    uint64_t joining = 0;
    for (size_t i = 0; i < waiting_.size() && joining < slots_ && budget_ > 0; ++i) {
      const WaitingView& w = waiting_[i];
      EVT_CHECK(i == 0 || waiting_[i - 1].order < w.order);
      EVT_CHECK(w.cached_tokens < w.tokens && w.tokens < w.max_length);
      if (w.held) continue;
      const uint64_t needed = JoiningBlocks(w, limits_);
      const uint64_t remaining = w.tokens - w.cached_tokens;
      // Steps until its prefill is done, with half of the budget, and a block is full.
      const uint64_t steps = CeilDiv(remaining, CeilDiv(budget_, 2)) + limits_.block_size;
      if (needed + RunningGrowth(steps) + JoiningGrowth(i, steps) > left) return;
      left -= needed;
      ++joining;
      const PlannedRow row = {.index = i, .admitted = true, .new_blocks = needed - w.idle_blocks};
      prefills_.push_back({row, w.order, remaining});
    }
  }

  // Blocks that running requests can come to need in so many steps beyond what they hold.
  uint64_t RunningGrowth(uint64_t steps) {
    if (steps == growth_steps_) return growth_;  // most of a queue asks the same
    growth_steps_ = steps;
    growth_ = 0;
    for (size_t i = 0; i < running_.size(); ++i) {
      const RunningView& r = running_[i];
      if (out_[i]) continue;
      const uint64_t longest = r.history + r.unretired_samples * most_tokens_;
      const uint64_t blocks =
          BlocksFor(longest + steps * most_tokens_, r.max_length, limits_.block_size);
      growth_ += blocks > r.blocks ? blocks - r.blocks : 0;
    }
    return growth_;
  }

  // ... and the first `count` of the queue beyond what has been set aside for them.
  uint64_t JoiningGrowth(size_t count, uint64_t steps) const {
    uint64_t growth = 0;
    for (const WaitingView& w : waiting_.first(count)) {
      if (w.held) continue;
      growth += BlocksFor(w.tokens + steps * most_tokens_, w.max_length, limits_.block_size) -
                BlocksFor(w.tokens + most_tokens_, w.max_length, limits_.block_size);
    }
    return growth;
  }

  // Rule 3.
  void ShareBudget() {
    if (prefills_.empty() || budget_ == 0) return;
    std::vector<Prefill*> others;
    for (Prefill& prefill : prefills_) others.push_back(&prefill);
    const auto oldest =
        std::ranges::min_element(others, {}, [](const Prefill* prefill) { return prefill->order; });
    Prefill* first = *oldest;
    others.erase(oldest);
    std::ranges::sort(others, {}, [](const Prefill* p) {
      return std::tuple(p->order.priority, p->remaining, p->order.sequence);
    });
    const auto longer = std::ranges::find_if(others, [&](const Prefill* p) {
      return p->order.priority != first->order.priority || p->remaining >= first->remaining;
    });
    uint64_t left = budget_;
    Give(first, CeilDiv(budget_, 2), &left);
    for (auto shorter = others.begin(); shorter != longer; ++shorter) Give(*shorter, left, &left);
    Give(first, left, &left);
    for (auto other = longer; other != others.end(); ++other) Give(*other, left, &left);
  }

  // Up to `most` tokens more for a prefill, out of `left`.
  void Give(Prefill* prefill, uint64_t most, uint64_t* left) const {
    uint64_t chunk = prefill->remaining;
    if (limits_.max_prefill_chunk != 0)
      chunk = std::min<uint64_t>(chunk, limits_.max_prefill_chunk);
    const uint64_t given = std::min(most, chunk - prefill->row.query_length);
    prefill->row.query_length += static_cast<uint32_t>(given);
    prefill->row.sample = prefill->row.query_length == prefill->remaining;
    *left -= given;
  }

  std::span<const WaitingView> waiting_;
  std::span<const RunningView> running_;
  const BatchLimits& limits_;
  uint64_t free_;         // blocks
  uint64_t pending_ = 0;  // blocks that come back when steps in flight have retired
  uint64_t slots_;
  uint64_t budget_;                         // tokens
  uint64_t drafts_;                         // of these, drafts
  uint64_t most_tokens_;                    // that a sampling row can append
  uint64_t growth_steps_ = 0, growth_ = 0;  // RunningGrowth's last answer
  bool returning_ = false;                  // some request is on its way back into the queue
  std::vector<bool> out_;                   // of `running`: gets no row
  std::vector<size_t> order_;
  std::vector<Prefill> prefills_;  // running ones by age, then those who may join in order
  BatchPlan plan_;
};

}  // namespace

absl::Status ValidateLimits(const BatchLimits& limits) {
  if (limits.max_num_seqs == 0)
    return absl::InvalidArgumentError("max_num_seqs is 0; it must be at least 1");
  if (limits.block_size == 0)
    return absl::InvalidArgumentError("block_size is 0; it must be at least 1");
  if (limits.max_num_batched_tokens == 0) {
    return absl::InvalidArgumentError("max_num_batched_tokens is 0; it must be at least 1");
  }
  // Lengths are 32-bit on the device; the sums above stay far from overflow.
  if (limits.max_model_len < 2 || limits.max_model_len > 0x7fffffff) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_model_len is ", limits.max_model_len, "; it must be in 2 … 2147483647"));
  }
  return absl::OkStatus();
}

uint64_t MostBlocks(uint64_t max_length, uint32_t block_size) {
  return BlocksFor(max_length, max_length, block_size);
}

uint64_t JoiningBlocks(const WaitingView& w, const BatchLimits& limits) {
  const uint64_t tokens = w.tokens + 1 + limits.draft_tokens;
  return BlocksFor(tokens, w.max_length, limits.block_size) - w.cached_tokens / limits.block_size +
         w.idle_blocks;
}

BatchPlan NextBatch(std::span<const WaitingView> waiting, std::span<const RunningView> running,
                    uint64_t free_blocks, uint64_t free_slots, const BatchLimits& limits) {
  return Planner(waiting, running, free_blocks, free_slots, limits).Plan();
}

}  // namespace eventide
