#include "serve/batcher.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "core/status.h"

namespace eventide {
namespace {

uint64_t CeilDiv(uint64_t a, uint64_t b) {
  return (a + b - 1) / b;
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
        pending_ += running[i].blocks;
      } else {
        ++live_;
      }
    }
  }

  BatchPlan Plan() {
    for (size_t at = 0; at < order_.size(); ++at) AddDecode(at);
    for (size_t i : order_) AddPrefill(i);
    // A preempted request is older than those who were never admitted: they must not overtake it.
    if (!plan_.stalled && !returning_ && plan_.preempted.empty()) AddWaiting();
    return std::move(plan_);
  }

 private:
  // Each unretired sampling row adds at least one token unless the request ended before.
  static bool MustHaveEnded(const RunningView& r) {
    return r.prefill_submitted == r.prefill_target &&
           r.history + r.unretired_samples >= r.max_length;
  }

  void AddRow(const PlannedRow& row) {
    EVT_CHECK(row.query_length > 0 && row.query_length <= budget_ && row.new_blocks <= free_);
    budget_ -= row.query_length;
    free_ -= row.new_blocks;
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
        std::min<uint64_t>({limits_.draft_tokens, r.max_length - 1 - least, budget_ - 1}));
    row.query_length = 1 + row.draft_length;
    // The longest outcome of the unretired rows, then this row's own tokens.
    const uint64_t longest = r.history + r.unretired_samples * (1 + uint64_t{limits_.draft_tokens});
    const uint64_t kv = std::min(longest + row.draft_length, r.max_length - 1);
    row.new_blocks = CeilDiv(kv, limits_.block_size);
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
      --live_;
      plan_.preempted.push_back(victim);
      (running_[victim].unretired ? pending_ : free_) += running_[victim].blocks;
    }
    return free_ >= needed;
  }

  uint64_t Chunk(uint64_t remaining) const {
    uint64_t chunk = std::min<uint64_t>(budget_, remaining);
    return limits_.max_prefill_chunk ? std::min<uint64_t>(chunk, limits_.max_prefill_chunk) : chunk;
  }

  void AddPrefill(size_t index) {
    const RunningView& r = running_[index];
    if (out_[index] || r.prefill_submitted == r.prefill_target || budget_ == 0) return;
    const uint64_t remaining = r.prefill_target - r.prefill_submitted;
    const uint64_t chunk = Chunk(remaining);
    AddRow({.index = index,
            .sample = chunk == remaining,
            .query_length = static_cast<uint32_t>(chunk)});
  }

  void AddWaiting() {
    for (size_t i = 0; i < waiting_.size() && slots_ > 0 && budget_ > 0; ++i) {
      const WaitingView& w = waiting_[i];
      EVT_CHECK(i == 0 || waiting_[i - 1].order < w.order);
      EVT_CHECK(w.cached_tokens < w.tokens && w.tokens < w.max_length);
      const uint64_t kv = std::min(w.tokens + 1 + limits_.draft_tokens, w.max_length - 1);
      const uint64_t needed =
          CeilDiv(kv, limits_.block_size) - w.cached_tokens / limits_.block_size;
      if (needed + live_ > free_) return;  // strictly in order: nobody overtakes
      const uint64_t remaining = w.tokens - w.cached_tokens;
      const uint64_t chunk = Chunk(remaining);
      AddRow({.index = i,
              .admitted = true,
              .sample = chunk == remaining,
              .query_length = static_cast<uint32_t>(chunk),
              .new_blocks = needed});
      --slots_;
      ++live_;
    }
  }

  std::span<const WaitingView> waiting_;
  std::span<const RunningView> running_;
  const BatchLimits& limits_;
  uint64_t free_;         // blocks
  uint64_t pending_ = 0;  // blocks that come back when steps in flight have retired
  uint64_t slots_;
  uint64_t budget_;         // tokens
  uint64_t live_ = 0;       // running requests that stay
  bool returning_ = false;  // some request is on its way back into the queue
  std::vector<bool> out_;   // of `running`: gets no row
  std::vector<size_t> order_;
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
  return CeilDiv(max_length - 1, block_size);
}

BatchPlan NextBatch(std::span<const WaitingView> waiting, std::span<const RunningView> running,
                    uint64_t free_blocks, uint64_t free_slots, const BatchLimits& limits) {
  return Planner(waiting, running, free_blocks, free_slots, limits).Plan();
}

}  // namespace eventide
