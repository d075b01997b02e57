// Who waits for whom: rules 2 and 3 of the batcher over many steps, without a model.
#include <random>

#include "tests/serve/batch_world.h"

namespace eventide {
namespace {

BatchLimits Limits(uint32_t budget) {
  return {.max_num_seqs = 64,
          .max_num_batched_tokens = budget,
          .max_model_len = 140000,
          .block_size = 16};
}

TEST_CASE("Short prompts that come while a giant one is prefilled have their first token at once") {
  std::vector<WorldRequest> requests = {{.prompt = 100000, .output = 4}};
  for (uint64_t i = 0; i < 40; ++i) {
    requests.push_back({.prompt = 20 + i * 5 % 200, .output = 8, .arrival = 2 + i * 3});
  }
  BatchWorld world(Limits(512), 20000, requests);
  world.Run(1000);
  for (size_t i = 1; i < world.requests.size(); ++i) {
    INFO(i);
    REQUIRE(world.requests[i].first_token == world.requests[i].arrival + 1);
  }
  // Alone it takes 196 steps. Half of the budget was always its own.
  BatchWorld alone(Limits(512), 20000, {requests[0]});
  alone.Run(1000);
  CHECK(alone.requests[0].first_token == 196);
  CHECK(world.requests[0].first_token <= 2 * 196);
}

TEST_CASE("However many short prompts come, a giant one keeps half of what decode rows leave") {
  std::vector<WorldRequest> requests = {{.prompt = 50000, .output = 4}};
  for (uint64_t i = 0; i < 4000; ++i)
    requests.push_back({.prompt = 250, .output = 1, .arrival = i / 4});
  BatchWorld world(Limits(512), 20000, requests);
  world.Run(5000);
  CHECK(world.requests[0].first_token >= 190);  // they do take the other half
  CHECK(world.requests[0].first_token <= 200);  // 50,000 / 256, and no decode rows
}

TEST_CASE(
    "Two giants and short ones: the short wait for neither, the giants for each other in order") {
  std::vector<WorldRequest> requests = {{.prompt = 30000, .output = 2},
                                        {.prompt = 30000, .output = 2}};
  for (uint64_t i = 0; i < 20; ++i)
    requests.push_back({.prompt = 100, .output = 3, .arrival = 1 + i * 5});
  BatchWorld world(Limits(512), 20000, requests);
  world.Run(1000);
  for (size_t i = 2; i < world.requests.size(); ++i) {
    REQUIRE(world.requests[i].first_token == world.requests[i].arrival + 1);
  }
  CHECK(world.requests[0].first_token < 80);
  CHECK(world.requests[1].first_token > world.requests[0].first_token + 40);
}

TEST_CASE("Prompts of equal length are served in order, as if there was no rule") {
  std::vector<WorldRequest> requests(50, {.prompt = 700, .output = 1});
  BatchWorld world(Limits(512), 20000, requests);
  world.Run(1000);
  for (uint64_t i = 0; i < requests.size(); ++i) {
    // After i + 1 prompts of 700 tokens: a decode-free, work-conserving queue.
    REQUIRE(world.requests[i].first_token == ((i + 1) * 700 + 511) / 512);
  }
}

TEST_CASE(
    "A giant prompt takes no token from a shorter one of a more urgent priority, nor gives any") {
  std::vector<WorldRequest> requests = {{.prompt = 20000, .output = 2, .priority = 0},
                                        {.prompt = 5000, .output = 2, .arrival = 1, .priority = -1},
                                        {.prompt = 100, .output = 2, .arrival = 1, .priority = 1}};
  BatchWorld world(Limits(500), 20000, requests);
  world.Run(1000);
  CHECK(world.requests[1].first_token == 11);  // 5000 / 500 from step 2 on
  CHECK(world.requests[0].first_token == 51);  // (20000 - 500) / 500 behind it
  CHECK(world.requests[2].first_token >= 51);
}

TEST_CASE("A head of the queue too big for now is not overtaken by what would fit") {
  // 60 blocks; two requests run with 20 each, the head needs 45.
  std::vector<WorldRequest> requests = {{.prompt = 300, .output = 20},
                                        {.prompt = 300, .output = 20},
                                        {.prompt = 700, .output = 20, .arrival = 1}};
  for (uint64_t i = 0; i < 100; ++i)
    requests.push_back({.prompt = 30, .output = 20, .arrival = 2 + i});
  BatchWorld world(Limits(512), 60, requests);
  world.Run(5000);
  const WorldRequest& head = world.requests[2];
  CHECK(head.joined > 20);  // when both who ran have gone
  CHECK(head.joined <= 23);
  for (size_t i = 3; i < world.requests.size(); ++i) {
    REQUIRE(world.requests[i].joined >= head.joined);
  }
}

TEST_CASE(
    "A giant prefill is not begun while those who run will need its blocks before it is done") {
  // Decode rows that end one after the other, and a prompt that takes 100 steps to prefill.
  std::vector<WorldRequest> requests(17, {.prompt = 16});
  for (uint64_t i = 0; i < 16; ++i) requests[i].output = 100 + 20 * i;
  requests[16] = {.prompt = 3200, .output = 50, .arrival = 20};
  for (uint64_t pool = 204; pool < 550; ++pool) {
    BatchWorld world(Limits(48), pool, requests);
    world.Run(3000);
    INFO(pool);
    REQUIRE(world.requests[16].preemptions == 0);
    REQUIRE(world.requests[16].prefill_work == 3200);
  }
}

TEST_CASE("In any pool that holds the largest request all finish, and preemptions stay few") {
  uint64_t total = 0, preemptions = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    std::mt19937_64 random(seed);
    BatchLimits limits = {.max_num_seqs = static_cast<uint32_t>(1 + random() % 40),
                          .max_num_batched_tokens = static_cast<uint32_t>(1 + random() % 300),
                          .max_model_len = 4000,
                          .block_size = static_cast<uint32_t>(1) << random() % 6};
    std::vector<WorldRequest> requests(1 + random() % 60);
    uint64_t largest = 0, work = 0;
    for (WorldRequest& r : requests) {
      r = {.prompt = 1 + random() % (random() % 4 ? 50 : 1000), .output = 1 + random() % 200};
      r.arrival = random() % 200;
      r.priority = seed % 2 ? static_cast<int32_t>(random() % 3) : 0;
      largest = std::max(largest, MostBlocks(r.max_length(), limits.block_size));
      work += r.max_length();
    }
    const double share[] = {1.0, 1.2, 2.5};
    const auto pool = static_cast<uint64_t>(share[seed % 3] * static_cast<double>(largest));
    INFO(seed);
    BatchWorld world(limits, pool, requests);
    world.Run(200 + 20 * work);
    REQUIRE(world.free_blocks() == pool);
    for (const WorldRequest& r : world.requests) {
      REQUIRE(r.generated == r.output);
      // Each time it came back it stayed for a block at least, unless a more urgent one came.
      if (seed % 2 == 0) REQUIRE(r.preemptions <= 1 + r.output / limits.block_size);
      preemptions += r.preemptions;
    }
    total += requests.size();
  }
  CHECK(preemptions > 100);
  CHECK(preemptions < total);
}

TEST_CASE("The oldest prefill gets its half and nothing is left over while somebody could use it") {
  uint64_t shared = 0;
  for (uint64_t seed = 0; seed < 20000; ++seed) {
    std::mt19937_64 random(seed);
    BatchLimits limits = Limits(static_cast<uint32_t>(1 + random() % 200));
    if (random() % 2) limits.max_prefill_chunk = static_cast<uint32_t>(1 + random() % 50);
    std::vector<RunningView> running(1 + random() % 6);
    for (uint64_t i = 0; i < running.size(); ++i) {
      RunningView& r = running[i];
      r.order = {static_cast<int32_t>(random() % 2), random()};
      r.prefill_target = 1 + random() % 300;
      r.prefill_submitted = random() % r.prefill_target;
      r.history = r.prefill_target;
      r.max_length = r.history + 5;
      r.blocks = 100;
    }
    const BatchPlan plan = NextBatch({}, running, 0, 0, limits);
    std::vector<uint64_t> got(running.size());
    for (const PlannedRow& row : plan.rows) got[row.index] = row.query_length;
    const auto chunk = [&](const RunningView& r) {
      const uint64_t left = r.prefill_target - r.prefill_submitted;
      return limits.max_prefill_chunk ? std::min<uint64_t>(left, limits.max_prefill_chunk) : left;
    };
    size_t oldest = 0;
    bool hungry = false;
    for (size_t i = 0; i < running.size(); ++i) {
      if (running[i].order < running[oldest].order) oldest = i;
      REQUIRE(got[i] <= chunk(running[i]));
      hungry |= got[i] < chunk(running[i]);
    }
    const uint64_t half = (limits.max_num_batched_tokens + 1) / 2;
    REQUIRE(got[oldest] >= std::min(half, chunk(running[oldest])));
    if (hungry) REQUIRE(plan.tokens == limits.max_num_batched_tokens);
    shared += plan.rows.size() > 1 && got[oldest] < chunk(running[oldest]);
  }
  CHECK(shared > 1000);
}

TEST_CASE("A step of no rows is a plan like any other") {
  const BatchPlan none = NextBatch({}, {}, 0, 0, Limits(1));
  CHECK(none.rows.empty());
  CHECK(none.tokens == 0);
  CHECK_FALSE(none.stalled);
  // Nor is there a row when all who run are leaving, or nobody who waits has a slot.
  const std::vector<RunningView> leaving = {{.order = {0, 0},
                                             .history = 5,
                                             .max_length = 9,
                                             .blocks = 1,
                                             .leaving = true,
                                             .unretired = true}};
  const std::vector<WaitingView> waiting = {{.order = {0, 1}, .tokens = 5, .max_length = 9}};
  CHECK(NextBatch(waiting, leaving, 100, 0, Limits(1)).rows.empty());
}

TEST_CASE("Every number of rows from 0 to 1,024 and contexts from 1 to 131,072 make valid plans") {
  BatchLimits limits = {
      .max_num_seqs = 1024, .max_num_batched_tokens = 8192, .max_model_len = 131073};
  std::mt19937_64 random(4);
  for (uint64_t rows = 0; rows <= 1024; ++rows) {
    std::vector<RunningView> running(rows);
    for (uint64_t i = 0; i < rows; ++i) {
      // Around powers of two, where blocks and chunks begin, and anywhere.
      const uint64_t near = (uint64_t{1} << random() % 18) + random() % 3 - 1;
      const uint64_t context =
          std::clamp<uint64_t>(i % 2 ? near : 1 + random() % 131072, 1, 131072);
      running[i] = {.order = {0, i},
                    .history = context,
                    .prefill_target = context,
                    .prefill_submitted = context,
                    .max_length = 131073,
                    .blocks = MostBlocks(context, 16)};
    }
    const BatchPlan plan = NextBatch({}, running, rows, 0, limits);
    REQUIRE(plan.rows.size() == rows);
    REQUIRE(plan.tokens == rows);
    for (const PlannedRow& row : plan.rows) {
      REQUIRE(row.decode);
      // The token at position history - 1 gets KV: a block more exactly at a block's beginning.
      REQUIRE(row.new_blocks == (running[row.index].history % 16 == 1));
    }
  }
  for (uint64_t context = 1; context <= 131072; context += 1 + context / 7) {
    BatchWorld world(limits, 8192, {{.prompt = context, .output = 1}});
    world.Run(20);
    REQUIRE(world.steps() == (context + 8191) / 8192);
  }
}

}  // namespace
}  // namespace eventide
