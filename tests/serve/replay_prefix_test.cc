// Replaying traces whose prompts share beginnings: what the prefix cache finds is what the trace
// says it should, and pressure on the pool changes no answer.
#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "serve/replay.h"
#include "tests/serve/engine_harness.h"

namespace eventide {
namespace {

struct Run {
  uint64_t max_model_len = 131072;
  uint64_t num_blocks = 0;  // 0: nothing is ever evicted
  uint32_t block_size = 16;
  uint64_t closed_loop = 1;
  double time_scale = 1;
  bool cached = true;
  bool priorities = false;
};

struct Replayed {
  ReplayResult result;
  EngineStats stats;
  std::map<std::string, std::vector<TokenId>> tokens;
  std::vector<std::string> order;  // of first tokens
};

Replayed Play(const Trace& trace, const Run& run) {
  ManualClock clock;
  RunnerInfo info;
  info.max_slots = 32;
  info.max_batched_tokens = 2048;
  info.max_model_len = run.max_model_len;
  info.block_size = run.block_size;
  info.num_blocks = run.num_blocks;
  for (const TraceRequest& r : trace.requests) {
    if (run.num_blocks == 0) {
      info.num_blocks += (r.prompt_tokens + r.output_tokens) / run.block_size + 2;
    }
  }
  info.max_steps_in_flight = 2;
  info.vocab_size = 1000;
  FakeRunner runner({.info = info, .clock = &clock});
  EngineOptions options;
  options.prefix_cache.enabled = run.cached;
  if (run.priorities) options.scheduling_policy = SchedulingPolicy::kPriority;
  auto engine = Engine::Create(&runner, &clock, options);
  REQUIRE(engine.ok());
  auto prompts = PromptSynthesizer::Create(1000, {});
  REQUIRE(prompts.ok());
  Replayed played;
  ReplayOptions replay;
  replay.closed_loop = run.closed_loop;
  replay.time_scale = run.time_scale;
  replay.priorities = run.priorities;
  replay.on_output = [&](const RequestOutput& output) {
    auto& tokens = played.tokens[output.id];
    if (tokens.empty() && !output.tokens.empty()) played.order.push_back(output.id);
    tokens.insert(tokens.end(), output.tokens.begin(), output.tokens.end());
  };
  auto result = Replay(engine->get(), &clock, trace, *prompts, replay);
  REQUIRE(result.ok());
  played.result = *result;
  played.stats = (*engine)->stats();
  CHECK(played.stats.kv_blocks_used == 0);
  CHECK((*engine)->CheckIntegrity().ok());
  CHECK(result->completed == trace.requests.size());
  CHECK(result->prefix_hit_tokens == played.stats.prefix_hit_tokens);
  return played;
}

// From the hash ids alone: the longest beginning in full KV blocks that some earlier prompt has
// too.
uint64_t HitsOf(const Trace& trace, uint64_t block_size) {
  uint64_t sum = 0;
  for (size_t i = 0; i < trace.requests.size(); ++i) {
    const TraceRequest& r = trace.requests[i];
    uint64_t best = 0;
    for (size_t j = 0; j < i; ++j) {
      const TraceRequest& before = trace.requests[j];
      const auto differ = std::ranges::mismatch(r.hash_ids, before.hash_ids).in1;
      const auto ids = static_cast<uint64_t>(differ - r.hash_ids.begin());
      best =
          std::max(best, std::min({ids * kHashBlockTokens, r.prompt_tokens, before.prompt_tokens}) /
                             block_size * block_size);
    }
    sum += std::min(best, (r.prompt_tokens - 1) / block_size * block_size);
  }
  return sum;
}

// Conversations: turn t of one has the ids of turn t - 1 and more; all begin with one system
// prompt.
Trace Conversations() {
  std::string text;
  std::vector<std::vector<uint64_t>> talks(8, {0});
  uint64_t next = 1;
  for (int i = 0; i < 60; ++i) {
    std::vector<uint64_t>& ids = talks[i * 5 % 8];
    for (int more = i % 3; more >= 0; --more) ids.push_back(next++);
    std::string list;
    for (uint64_t id : ids) absl::StrAppend(&list, list.empty() ? "" : ", ", id);
    absl::StrAppend(&text, R"({"timestamp": )", i * 100, R"(, "input_length": )",
                    (ids.size() - 1) * 512 + 1 + i * 37 % 512, R"(, "output_length": )",
                    1 + i * 7 % 90, R"(, "hash_ids": [)", list, "]}\n");
  }
  auto trace = ParseTrace(text, "conversations");
  REQUIRE(trace.ok());
  return *trace;
}

TEST_CASE("One by one, a trace finds exactly the prompt tokens that its hash ids say are shared") {
  const Trace trace = Conversations();
  for (uint32_t block_size : {1u, 16u, 100u, 512u}) {
    Run run;
    run.block_size = block_size;
    const uint64_t hits = HitsOf(trace, block_size);
    CHECK(hits > 10 * 512);
    CHECK(Play(trace, run).result.prefix_hit_tokens == hits);
  }
}

TEST_CASE("Pools, loops and the cache itself change what is computed and no answer") {
  Trace trace = Conversations();
  REQUIRE(FitTrace(&trace, 1700).ok());
  // Answers long enough to outgrow what was free when they were admitted.
  for (TraceRequest& request : trace.requests) request.output_tokens *= 20;
  Run run;
  run.max_model_len = 2000;
  run.cached = false;
  const Replayed plain = Play(trace, run);
  CHECK(plain.result.prefix_hit_tokens == 0);
  uint64_t preemptions = 0;
  for (uint64_t blocks : {125, 150, 300, 5000}) {
    for (uint64_t loop : {0, 1, 16}) {
      run = {.max_model_len = 2000, .num_blocks = blocks, .closed_loop = loop, .time_scale = 0.05};
      const Replayed played = Play(trace, run);
      INFO(blocks << " " << loop);
      CHECK(played.tokens == plain.tokens);
      CHECK(played.result.prefix_hit_tokens > 0);
      CHECK(played.stats.computed_tokens < plain.stats.computed_tokens);
      preemptions += played.result.preemptions;
    }
  }
  CHECK(preemptions > 0);
}

TEST_CASE("The trace's priorities order the queue, where the policy asks for them") {
  std::string text;
  for (int i = 0; i < 200; ++i) {
    absl::StrAppend(&text,
                    R"({"timestamp": 0, "input_length": 500, "output_length": 2, "priority": )",
                    i % 2 ? -1 : 1, "}\n");
  }
  const auto trace = ParseTrace(text, "t");
  REQUIRE(trace.ok());
  for (bool priorities : {false, true}) {
    Run run;
    run.closed_loop = 0;
    run.priorities = priorities;
    const Replayed played = Play(*trace, run);
    const auto urgent =
        std::ranges::count_if(played.order.begin(), played.order.begin() + 100,
                              [](const std::string& id) { return (id.back() - '0') % 2 == 1; });
    CHECK(urgent == (priorities ? 100 : 50));
  }
}

TEST_CASE("Mooncake's conversations find what their hash ids say, and complete under pressure") {
  auto path = TestData("traces/mooncake_conversation.jsonl");
  if (!path) return Skip("no traces in EVENTIDE_TEST_DATA");
  auto trace = ReadTrace(*path, 300);
  REQUIRE(trace.ok());
  for (TraceRequest& request : trace->requests) request.output_tokens = 1;
  const uint64_t hits = HitsOf(*trace, 16);
  CHECK(hits > 300000);
  CHECK(Play(*trace, {}).result.prefix_hit_tokens == hits);

  trace = ReadTrace(*path, 3000);
  REQUIRE(trace.ok());
  REQUIRE(FitTrace(&*trace, 4096).ok());
  Run run = {.max_model_len = 4096, .num_blocks = 300, .closed_loop = 0, .time_scale = 0.02};
  const Replayed tight = Play(*trace, run);
  CHECK(tight.result.distinct_shapes > 500);
  run.num_blocks = 0;
  const Replayed roomy = Play(*trace, run);
  CHECK(tight.tokens == roomy.tokens);
  CHECK(roomy.result.prefix_hit_tokens >= tight.result.prefix_hit_tokens);
  CHECK(roomy.stats.evicted_blocks == 0);
  CHECK(tight.stats.evicted_blocks > 0);
}

}  // namespace
}  // namespace eventide
