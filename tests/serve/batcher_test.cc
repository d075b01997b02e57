#include "serve/batcher.h"

#include <algorithm>
#include <map>
#include <random>

#include "tests/support/test.h"

namespace eventide {
namespace {

BatchLimits Limits() {
  return {.max_num_seqs = 8, .max_num_batched_tokens = 32, .max_model_len = 256, .block_size = 4};
}

RunningView Decoding(uint64_t sequence, uint64_t history, uint64_t blocks) {
  return {.order = {0, sequence},
          .history = history,
          .prefill_target = 2,
          .prefill_submitted = 2,
          .max_length = 256,
          .blocks = blocks};
}

WaitingView Waiting(uint64_t sequence, uint64_t tokens) {
  return {.order = {0, sequence}, .tokens = tokens, .max_length = 256};
}

TEST_CASE("Decode rows come first and prefill chunks fill the rest of the budget in order") {
  std::vector<RunningView> running = {{.order = {0, 3},
                                       .history = 40,
                                       .prefill_target = 40,
                                       .prefill_submitted = 8,
                                       .max_length = 256,
                                       .blocks = 11},
                                      Decoding(1, 3, 1),
                                      Decoding(2, 4, 1)};
  std::vector<WaitingView> waiting = {Waiting(4, 100)};
  BatchPlan plan = NextBatch(waiting, running, 100, 5, Limits());
  REQUIRE(plan.rows.size() == 3);
  CHECK(plan.rows[0].index == 1);
  CHECK(plan.rows[0].decode);
  CHECK(plan.rows[0].new_blocks == 0);
  CHECK(plan.rows[1].index == 2);
  CHECK(plan.rows[2].index == 0);
  CHECK(plan.rows[2].query_length == 30);
  CHECK_FALSE(plan.rows[2].sample);
  CHECK(plan.tokens == 32);
}

TEST_CASE("The last chunk of a prompt samples and is never followed by an empty one") {
  BatchLimits limits = Limits();
  limits.max_prefill_chunk = 16;
  for (uint64_t prompt = 1; prompt <= 70; ++prompt) {
    RunningView r = {.order = {0, 0},
                     .history = prompt,
                     .prefill_target = prompt,
                     .max_length = 256,
                     .blocks = 64};
    uint64_t covered = 0;
    while (r.prefill_submitted < prompt) {
      BatchPlan plan = NextBatch({}, std::vector<RunningView>{r}, 0, 0, limits);
      REQUIRE(plan.rows.size() == 1);
      const PlannedRow& row = plan.rows[0];
      REQUIRE((row.query_length >= 1 && row.query_length <= 16));
      covered += row.query_length;
      r.prefill_submitted += row.query_length;
      REQUIRE(row.sample == (covered == prompt));
      r.unretired_samples += row.sample;
    }
    BatchPlan next = NextBatch({}, std::vector<RunningView>{r}, 0, 0, limits);
    REQUIRE(next.rows.size() == 1);
    REQUIRE(next.rows[0].decode);
  }
}

TEST_CASE("A request that must have ended by length gets no row however late the host is") {
  RunningView r = Decoding(0, 254, 64);
  r.unretired_samples = 1;
  r.unretired = true;
  CHECK(NextBatch({}, std::vector<RunningView>{r}, 0, 0, Limits()).rows.size() == 1);
  r.unretired_samples = 2;
  CHECK(NextBatch({}, std::vector<RunningView>{r}, 0, 0, Limits()).rows.empty());
}

TEST_CASE("Blocks are reserved for the longest outcome of steps that have not retired") {
  BatchLimits limits = Limits();
  limits.draft_tokens = 3;
  RunningView r = Decoding(0, 4, 1);  // KV of 4 tokens fits one block
  BatchPlan plan = NextBatch({}, std::vector<RunningView>{r}, 9, 0, limits);
  REQUIRE(plan.rows.size() == 1);
  CHECK(plan.rows[0].draft_length == 3);
  CHECK(plan.rows[0].new_blocks == 1);  // 4 + 3 drafts = 7 tokens
  r.unretired_samples = 1;
  plan = NextBatch({}, std::vector<RunningView>{r}, 9, 0, limits);
  CHECK(plan.rows[0].new_blocks == 2);  // up to 4 more: 11 tokens
  r.max_length = 7;                     // KV of 6 tokens at most, whatever is drafted
  plan = NextBatch({}, std::vector<RunningView>{r}, 9, 0, limits);
  CHECK(plan.rows[0].new_blocks == 1);
  CHECK(plan.rows[0].draft_length == 1);
}

TEST_CASE("The youngest request is preempted for an older one, and never the other way round") {
  std::vector<RunningView> running = {Decoding(1, 4, 1), Decoding(0, 5, 1), Decoding(2, 8, 2)};
  BatchPlan plan = NextBatch({}, running, 0, 0, Limits());
  CHECK(plan.preempted == std::vector<size_t>{2});
  REQUIRE(plan.rows.size() == 2);
  CHECK(plan.rows[0].index == 1);  // the oldest got a block of the youngest
  CHECK(plan.rows[0].new_blocks == 1);
  // The youngest alone needs a block: it waits, nobody is preempted.
  running = {Decoding(0, 4, 1), Decoding(1, 5, 1)};
  plan = NextBatch({}, running, 0, 0, Limits());
  CHECK(plan.preempted.empty());
  CHECK(plan.stalled);
  REQUIRE(plan.rows.size() == 1);
  CHECK(plan.rows[0].index == 0);
}

TEST_CASE(
    "A victim with rows in flight gives its blocks later, and no second victim is taken for it") {
  std::vector<RunningView> running = {Decoding(0, 5, 1), Decoding(1, 4, 1), Decoding(2, 4, 1)};
  running[2].unretired = true;
  running[2].unretired_samples = 0;
  BatchPlan plan = NextBatch({}, running, 0, 0, Limits());
  CHECK(plan.preempted == std::vector<size_t>{2});
  CHECK(plan.stalled);
  REQUIRE(plan.rows.size() == 1);
  CHECK(plan.rows[0].index == 1);
  running[2].leaving = running[2].returning = true;
  plan = NextBatch({}, running, 0, 0, Limits());
  CHECK(plan.preempted.empty());
}

TEST_CASE("A younger row takes no free block that an older one is waiting to complete") {
  BatchLimits limits = Limits();
  limits.block_size = 1;
  std::vector<RunningView> running = {Decoding(0, 5, 4), Decoding(1, 5, 4), Decoding(2, 4, 3)};
  running[0].unretired = true;
  running[0].unretired_samples = 1;  // needs two blocks, one is free, three are coming
  running[2].unretired = running[2].leaving = true;
  BatchPlan plan = NextBatch({}, running, 1, 0, limits);
  CHECK(plan.stalled);
  CHECK(plan.rows.empty());
  CHECK(plan.preempted.empty());
}

TEST_CASE("Nobody overtakes the head of the queue, and nobody is admitted beside a preemption") {
  std::vector<WaitingView> waiting = {Waiting(5, 100), Waiting(6, 1)};
  CHECK(NextBatch(waiting, {}, 10, 8, Limits()).rows.empty());
  CHECK(NextBatch(waiting, {}, 26, 8, Limits()).rows.size() == 1);  // 101 tokens are 26 blocks
  std::vector<RunningView> running = {Decoding(0, 5, 1)};
  running.push_back(Decoding(1, 4, 1));
  running[1].leaving = running[1].returning = running[1].unretired = true;
  waiting = {Waiting(6, 1)};
  BatchPlan plan = NextBatch(waiting, running, 50, 6, Limits());
  REQUIRE(plan.rows.size() == 1);
  CHECK_FALSE(plan.rows[0].admitted);
}

TEST_CASE("Lower priority values go first") {
  std::vector<RunningView> running = {Decoding(0, 5, 1), Decoding(9, 5, 1)};
  running[0].order.priority = 1;
  BatchPlan plan = NextBatch({}, running, 0, 0, Limits());
  CHECK(plan.preempted == std::vector<size_t>{0});
  REQUIRE(plan.rows.size() == 1);
  CHECK(plan.rows[0].index == 1);
}

TEST_CASE("Every token budget is used exactly by long prompts, multiples of nothing among them") {
  for (uint32_t budget : {1u, 7u, 31u, 32u, 33u, 696u, 700u, 704u, 1234u}) {
    BatchLimits limits = Limits();
    limits.max_num_batched_tokens = budget;
    limits.max_model_len = 4096;
    std::vector<WaitingView> waiting;
    for (uint64_t i = 0; i < 8; ++i) {
      waiting.push_back({.order = {0, i}, .tokens = 1000, .max_length = 1100});
    }
    BatchPlan plan = NextBatch(waiting, {}, 100000, 8, limits);
    CHECK(plan.tokens == budget);
  }
}

TEST_CASE("Limits that no step could respect are refused by name") {
  BatchLimits limits = Limits();
  CHECK(ValidateLimits(limits).ok());
  limits.max_num_seqs = 0;
  CHECK(std::string(ValidateLimits(limits).message()).find("max_num_seqs") != std::string::npos);
  limits = Limits();
  limits.max_num_batched_tokens = 0;
  CHECK_FALSE(ValidateLimits(limits).ok());
  limits = Limits();
  limits.max_model_len = uint64_t{1} << 32;
  CHECK_FALSE(ValidateLimits(limits).ok());
}

// A snapshot that an engine could be in, made at random, and what must hold for any plan of it.
struct Snapshot {
  BatchLimits limits;
  std::vector<WaitingView> waiting;
  std::vector<RunningView> running;
  uint64_t free_blocks = 0, free_slots = 0;
};

Snapshot RandomSnapshot(std::mt19937_64& random) {
  Snapshot s;
  s.limits = {.max_num_seqs = static_cast<uint32_t>(1 + random() % 12),
              .max_num_batched_tokens = static_cast<uint32_t>(1 + random() % 60),
              .max_model_len = 100,
              .block_size = static_cast<uint32_t>(1 + random() % 8),
              .draft_tokens = static_cast<uint32_t>(random() % 2 ? 0 : random() % 4),
              .max_prefill_chunk = static_cast<uint32_t>(random() % 2 ? 0 : 1 + random() % 16)};
  std::vector<uint64_t> sequences(40);
  for (uint64_t i = 0; i < 40; ++i) sequences[i] = i;
  std::shuffle(sequences.begin(), sequences.end(), random);
  const uint64_t running = random() % (s.limits.max_num_seqs + 1);
  for (uint64_t i = 0; i < running; ++i) {
    RunningView r = {.order = {static_cast<int32_t>(random() % 2), sequences[i]}};
    r.max_length = 2 + random() % 99;
    r.prefill_target = 1 + random() % (r.max_length - 1);
    r.history = r.prefill_target;
    r.prefill_submitted = random() % 2 ? r.prefill_target : random() % r.prefill_target;
    if (r.prefill_submitted == r.prefill_target) {
      r.history += random() % (r.max_length - r.history);
      r.unretired_samples = r.history == r.prefill_target ? 1 + random() % 2 : random() % 3;
    }
    r.unretired = r.unretired_samples > 0 || random() % 4 == 0;
    const uint64_t kv = r.history + r.unretired_samples * (1 + s.limits.draft_tokens);
    r.blocks = (std::min(kv, r.max_length - 1) + s.limits.block_size - 1) / s.limits.block_size;
    if (r.unretired && random() % 5 == 0) r.leaving = true;
    r.returning = r.leaving && random() % 2;
    if (random() % 2) r.shared_blocks = random() % (r.blocks + 1);
    s.running.push_back(r);
  }
  s.free_slots = s.limits.max_num_seqs - running;
  s.free_blocks = random() % 2 ? random() % 3 : random() % 60;
  const uint64_t waiting = random() % 10;
  for (uint64_t i = 0; i < waiting; ++i) {
    WaitingView w = {.order = {static_cast<int32_t>(random() % 2), sequences[20 + i]}};
    w.max_length = 2 + random() % 99;
    w.tokens = 1 + random() % (w.max_length - 1);
    if (random() % 2) {
      const uint64_t cached = random() % ((w.tokens - 1) / s.limits.block_size + 1);
      w.cached_tokens = cached * s.limits.block_size;
      w.idle_blocks = random() % (cached + 1);
    }
    w.held = running > 0 && random() % 4 == 0;
    s.waiting.push_back(w);
  }
  std::sort(s.waiting.begin(), s.waiting.end(),
            [](const auto& a, const auto& b) { return a.order < b.order; });
  return s;
}

void CheckPlan(const Snapshot& s, const BatchPlan& plan) {
  uint64_t tokens = 0, taken = 0, admitted = 0, given = 0, reach = 0;
  std::vector<int> used(s.running.size());
  for (size_t victim : plan.preempted) {
    const RunningView& v = s.running[victim];
    REQUIRE(++used[victim] == 1);
    REQUIRE_FALSE(v.leaving);
    if (!v.unretired) given += v.blocks - v.shared_blocks;
    // Never for a younger request: every row that takes a block is older.
    for (const PlannedRow& row : plan.rows) {
      if (row.new_blocks == 0) continue;
      REQUIRE_FALSE(row.admitted);
      REQUIRE(s.running[row.index].order < v.order);
    }
  }
  for (const PlannedRow& row : plan.rows) {
    REQUIRE(row.query_length >= 1);
    tokens += row.query_length;
    taken += row.new_blocks;
    if (row.admitted) {
      REQUIRE_FALSE(s.waiting[row.index].held);
      REQUIRE((admitted == 0 || row.index >= reach));
      reach = row.index + 1;
      ++admitted;
      const WaitingView& w = s.waiting[row.index];
      REQUIRE(row.sample == (row.query_length == w.tokens - w.cached_tokens));
      REQUIRE((w.cached_tokens / s.limits.block_size + row.new_blocks) * s.limits.block_size >=
              w.tokens);
      continue;
    }
    const RunningView& r = s.running[row.index];
    REQUIRE(++used[row.index] == 1);
    REQUIRE_FALSE(r.leaving);
    const uint64_t slots = (r.blocks + row.new_blocks) * s.limits.block_size;
    if (row.decode) {
      REQUIRE(r.prefill_submitted == r.prefill_target);
      REQUIRE(row.query_length == 1 + row.draft_length);
      const uint64_t longest = r.history + r.unretired_samples * (1 + s.limits.draft_tokens);
      REQUIRE(slots >= std::min(longest + row.draft_length, r.max_length - 1));
      REQUIRE(r.history + r.unretired_samples + row.draft_length < r.max_length);
    } else {
      REQUIRE(r.prefill_submitted + row.query_length <= r.prefill_target);
      REQUIRE(row.sample == (r.prefill_submitted + row.query_length == r.prefill_target));
    }
  }
  REQUIRE(tokens == plan.tokens);
  REQUIRE(tokens <= s.limits.max_num_batched_tokens);
  REQUIRE(taken <= s.free_blocks + given);
  REQUIRE(admitted <= s.free_slots);
  if (admitted > 0) REQUIRE((plan.preempted.empty() && !plan.stalled));
  // Whoever is overtaken could have joined too, and was only short of tokens.
  for (const PlannedRow& row : plan.rows) taken -= row.admitted ? row.new_blocks : 0;
  uint64_t could = 0;
  for (uint64_t i = 0; i < reach; ++i) {
    if (s.waiting[i].held) continue;
    taken += JoiningBlocks(s.waiting[i], s.limits);
    ++could;
  }
  REQUIRE(could <= s.free_slots);
  REQUIRE(taken <= s.free_blocks + given);
  if (admitted < could) REQUIRE(tokens == s.limits.max_num_batched_tokens);
}

TEST_CASE("Whatever the state, a plan keeps every account, budget and order") {
  uint64_t preempted = 0, stalled = 0, admitted = 0;
  for (uint64_t seed = 0; seed < 20000; ++seed) {
    std::mt19937_64 random(seed);
    const Snapshot s = RandomSnapshot(random);
    const BatchPlan plan = NextBatch(s.waiting, s.running, s.free_blocks, s.free_slots, s.limits);
    INFO(seed);
    CheckPlan(s, plan);
    preempted += plan.preempted.size();
    stalled += plan.stalled;
    for (const PlannedRow& row : plan.rows) admitted += row.admitted;
    // The oldest request that can take a row gets one unless the blocks it needs are on their way.
    const RunningView* oldest = nullptr;
    bool coming = false;
    for (const RunningView& r : s.running) {
      coming |= r.unretired;
      if (oldest == nullptr || r.order < oldest->order) oldest = &r;
    }
    const uint64_t most = oldest ? MostBlocks(oldest->max_length, s.limits.block_size) : 0;
    uint64_t pool = s.free_blocks + (oldest ? oldest->shared_blocks : 0);
    for (const RunningView& r : s.running) pool += r.blocks - r.shared_blocks;
    if (oldest != nullptr && !coming && pool >= most) REQUIRE_FALSE(plan.rows.empty());
    // And an idle engine takes the head of the queue if the pool can hold it.
    if (s.running.empty() && !s.waiting.empty() &&
        s.free_blocks >= MostBlocks(s.waiting[0].max_length, s.limits.block_size)) {
      REQUIRE(plan.rows.size() >= 1);
    }
  }
  CHECK(preempted > 100);
  CHECK(stalled > 300);
  CHECK(admitted > 1000);
}

}  // namespace
}  // namespace eventide
