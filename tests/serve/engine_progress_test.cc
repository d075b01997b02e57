// That an engine gets on whatever the pool, the priorities and the users do: inputs on which other
// engines were reported to hang, to starve somebody or to lose blocks. Every step is under a
// watchdog.
#include <algorithm>
#include <random>

#include "absl/strings/str_cat.h"
#include "serve/replay.h"
#include "tests/serve/engine_harness.h"

namespace eventide {
namespace {

EngineOptions Priority() {
  EngineOptions options;
  options.scheduling_policy = SchedulingPolicy::kPriority;
  return options;
}

Request Urgent(Request request, int32_t priority) {
  request.priority = priority;
  return request;
}

TEST_CASE(
    "A huge urgent head of the queue waits only for who runs, and its blocks park with nobody") {
  Harness h(WithBlocks(70), Priority());
  for (int i = 0; i < 30; ++i) REQUIRE(h.Add(Urgent(h.Make(absl::StrCat("a", i), 9, 20), 5)).ok());
  for (int i = 0; i < 4; ++i) h.Step();
  REQUIRE(h.Add(Urgent(h.Make("huge", 200, 50), -1)).ok());  // 63 of 70 blocks
  for (int i = 0; i < 300; ++i) REQUIRE(h.Add(Urgent(h.Make(absl::StrCat("b", i), 9, 20), 5)).ok());
  h.Finish();
  CHECK(h.engine().stats().finished_length == 331);
  // Those that ran when it came have ended before it, nobody else.
  std::vector<std::string> ends;
  for (const auto& output : h.outputs) {
    if (output.finish_reason != FinishReason::kNone) ends.push_back(output.id);
  }
  const auto huge = std::ranges::find(ends, "huge") - ends.begin();
  CHECK(huge <= 20);
}

TEST_CASE("The only request of an engine, once preempted, comes back with nobody else arriving") {
  Harness h(WithBlocks(40), Priority());
  REQUIRE(h.Add(Urgent(h.Make("patient", 60, 90), 1)).ok());  // 38 blocks at its end
  for (int i = 0; i < 30; ++i) h.Step();
  REQUIRE(h.Add(Urgent(h.Make("urgent", 8, 100), 0)).ok());
  while (h.engine().stats().preemptions == 0) h.Step();
  h.Finish();
  CHECK(h.Tokens("patient").size() == 90);
  CHECK(h.Tokens("urgent").size() == 100);
  // The urgent one never waited for the other once it ran.
  std::vector<std::string> ends;
  for (const auto& output : h.outputs) {
    if (output.finish_reason != FinishReason::kNone) ends.push_back(output.id);
  }
  CHECK(ends == std::vector<std::string>{"urgent", "patient"});
}

TEST_CASE("Under a stream of urgent requests a patient one is served when they leave room") {
  Harness h(WithBlocks(64), Priority());
  REQUIRE(h.Add(Urgent(h.Make("patient", 100, 100), 1)).ok());
  for (int i = 0; i < 200; ++i) {
    REQUIRE(h.Add(Urgent(h.Make(absl::StrCat(i), 20, 10), 0)).ok());
    for (int s = 0; s < 4; ++s) h.Step();
  }
  h.Finish();
  CHECK(h.Tokens("patient").size() == 100);
  CHECK(h.engine().stats().preemptions < 20);
}

TEST_CASE("Of many requests the one that overflows is cut or refused, and only that one") {
  Harness h(WithBlocks(90));
  for (int i = 0; i < 6; ++i) REQUIRE(h.Add(absl::StrCat(i), 30, 30).ok());
  REQUIRE(h.Add("long", 200, 10000).ok());  // ends at the model's length
  CHECK_FALSE(h.Add("longer", 256, 1).ok());
  for (int i = 6; i < 12; ++i) REQUIRE(h.Add(absl::StrCat(i), 30, 30).ok());
  h.Finish();
  CHECK(h.Tokens("long").size() == 56);
  CHECK(h.Outcome("long").finish_reason == FinishReason::kLength);
  for (int i = 0; i < 12; ++i) CHECK(h.Tokens(absl::StrCat(i)).size() == 30);
}

TEST_CASE("Ten thousand aborts that race the last token: one outcome, and each block back once") {
  uint64_t won = 0;
  for (uint64_t seed = 0; seed < 10000; ++seed) {
    std::mt19937_64 random(seed);
    Harness h(WithBlocks(24), {}, {.seed = seed, .late = static_cast<double>(random() % 3) / 2});
    // Two share a beginning, one computes it twice, the last one ends beside the abort.
    REQUIRE(h.Add("a", 5 + random() % 20, 1 + static_cast<uint32_t>(random() % 4)).ok());
    REQUIRE(h.Add("b", 5 + random() % 20, 6).ok());
    for (uint64_t i = random() % 9; i > 0; --i) h.Step();
    const bool ended = !h.engine().Cancel("a").ok();
    if (random() % 2) REQUIRE(h.Add("c", 12, 3).ok());
    won += !ended;
    h.Finish();
    REQUIRE(h.Outcome("a").finish_reason == (ended ? FinishReason::kLength : FinishReason::kAbort));
    REQUIRE(h.Outcome("b").finish_reason == FinishReason::kLength);
    h.engine().ResetPrefixCache();
    REQUIRE(h.engine().stats().kv_blocks_cached == 0);
    REQUIRE(h.engine().CheckIntegrity().ok());
  }
  CHECK(won > 2000);
  CHECK(won < 8000);
}

TEST_CASE("An abort while its step is in flight gives nothing back before that step has retired") {
  Harness h(Info(), {}, {.late = 1});
  REQUIRE(h.Add("a", 100, 50).ok());
  h.Step();
  const uint64_t used = h.engine().stats().kv_blocks_used;
  CHECK(used > 0);
  REQUIRE(h.engine().Cancel("a").ok());
  CHECK(h.engine().stats().running == 0);
  CHECK(h.engine().stats().kv_blocks_used == used);
  CHECK(h.engine().HasWork());  // somebody must still retire the step
  h.Step();
  CHECK(h.engine().stats().kv_blocks_used == 0);
  CHECK_FALSE(h.engine().HasWork());
}

TEST_CASE("Five thousand short requests leave an engine as it was, prefixes shared or not") {
  for (bool cached : {false, true}) {
    RunnerInfo info = WithBlocks(120);
    info.max_slots = 32;
    info.max_draft_tokens = 2;
    EngineOptions options;
    options.prefix_cache.enabled = cached;
    options.draft_tokens = 2;
    Harness h(info, options);
    std::mt19937_64 random(9);
    uint64_t tokens = 0;
    for (int i = 0; i < 5000; ++i) {
      Request request =
          h.Make(absl::StrCat(i), 1 + random() % 40, 1 + static_cast<uint32_t>(random() % 12));
      request.prompt[0] = static_cast<TokenId>(random() % 20);
      tokens += request.sampling.max_tokens;
      REQUIRE(h.Add(request).ok());
      if (i % 3 == 0) h.Step();
    }
    h.Finish();
    const EngineStats stats = h.engine().stats();
    CHECK(stats.finished_length == 5000);
    CHECK(stats.output_tokens == tokens);
    CHECK(stats.preemptions < 500);
    CHECK((stats.prefix_hit_tokens > 10000) == cached);
    CHECK(stats.kv_blocks_used == 0);
    h.engine().ResetPrefixCache();
    CHECK(h.engine().CheckIntegrity().ok());
  }
}

TEST_CASE("A replay whose every step fails says so instead of waiting") {
  ManualClock clock;
  FakeRunner runner({.info = Info(), .step_failure = 1, .clock = &clock});
  auto engine = Engine::Create(&runner, &clock, {});
  REQUIRE(engine.ok());
  const auto trace = ParseTrace("TIMESTAMP,ContextTokens,GeneratedTokens\n0,20,5\n0,30,5\n", "t");
  const auto prompts = PromptSynthesizer::Create(100, {});
  const auto result = Replay(engine->get(), &clock, *trace, *prompts, {});
  REQUIRE(result.ok());
  CHECK(result->failed == 2);  // from which the command makes exit status 1
  CHECK(result->first_error.find("aborted") != std::string::npos);
}

}  // namespace
}  // namespace eventide
