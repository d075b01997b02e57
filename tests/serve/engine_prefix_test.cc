// The engine's prefix cache: what is reused, when, and that it changes no token. Faults that users
// of other engines met appear with their inputs. On the fake device a token depends on all KV
// before it, so a block under a wrong prefix changes what is said.
#include <random>

#include "absl/strings/str_cat.h"
#include "tests/serve/engine_harness.h"

namespace eventide {
namespace {

EngineOptions Cached(bool enabled, uint32_t hash_bits = 64) {
  EngineOptions options;
  options.prefix_cache = {.enabled = enabled, .hash_bits = hash_bits};
  return options;
}

std::vector<TokenId> RandomTokens(std::mt19937_64& random, uint64_t count, uint64_t vocab = 100) {
  std::vector<TokenId> tokens(count);
  for (TokenId& token : tokens) token = static_cast<TokenId>(random() % vocab);
  return tokens;
}

Request Ask(const std::string& id, std::vector<TokenId> prompt, uint32_t max_tokens) {
  Request request;
  request.id = id;
  request.prompt = std::move(prompt);
  request.sampling.max_tokens = max_tokens;
  return request;
}

// What each request says, served one by one or all together.
std::vector<std::vector<TokenId>> Say(const std::vector<Request>& requests, RunnerInfo info,
                                      EngineOptions options, bool together, EngineStats* stats) {
  Harness h(std::move(info), std::move(options));
  for (const Request& request : requests) {
    REQUIRE(h.Add(request).ok());
    if (!together) h.Finish();
  }
  h.Finish();
  std::vector<std::vector<TokenId>> said;
  for (const Request& request : requests) said.push_back(h.Tokens(request.id));
  *stats = h.engine().stats();
  return said;
}

TEST_CASE("Two hundred prompts say the same with the cache off, with 64, 8 and 1 bits of hash") {
  std::mt19937_64 random(5);
  const std::vector<TokenId> system = RandomTokens(random, 40);
  std::vector<Request> requests;
  for (int i = 0; i < 200; ++i) {
    std::vector<TokenId> prompt = RandomTokens(random, 1 + random() % 60);
    if (i % 2) prompt.insert(prompt.begin(), system.begin(), system.begin() + 1 + i % 40);
    requests.push_back(Ask(absl::StrCat(i), prompt, 1 + i % 13));
  }
  for (bool together : {false, true}) {
    EngineStats stats;
    const auto off = Say(requests, Info(), Cached(false), together, &stats);
    CHECK(stats.prefix_hit_tokens == 0);
    CHECK(stats.kv_blocks_cached == 0);
    for (uint32_t bits : {64u, 8u, 1u}) {
      const auto on = Say(requests, Info(), Cached(true, bits), together, &stats);
      CHECK(on == off);
      CHECK(stats.prefix_hit_tokens > 500);
      CHECK(stats.prefix_query_tokens == stats.prompt_tokens);
      CHECK(stats.evicted_blocks > 0);
    }
  }
}

TEST_CASE("A fake device tells a block under a wrong prefix from the right one") {
  // The control of the tests above: the same slot, given another prompt's block, says something
  // else.
  ManualClock clock;
  FakeRunner runner({.info = Info(), .late = 0, .clock = &clock});
  const auto run = [&](uint32_t slot, std::vector<TokenId> tokens, uint32_t cached,
                       std::vector<BlockId> blocks) {
    SlotAdmission admission;
    admission.slot = slot;
    admission.tokens = tokens;
    admission.cached_tokens = cached;
    admission.max_length = 20;
    REQUIRE(runner.Admit(admission).ok());
    const Row row = {slot, static_cast<uint32_t>(tokens.size()) - cached, 0, kRowSample};
    const BlockTableUpdate update = {slot, 0, blocks};
    REQUIRE(runner.Submit({0, {&row, 1}, {&update, 1}}).ok());
    return runner.Wait().rows[0].tokens;
  };
  const std::vector<TokenId> a = {1, 2, 3, 4, 5}, b = {9, 2, 3, 4, 5};
  const auto said = run(0, a, 0, {0, 1});
  run(1, b, 0, {2, 3});
  CHECK(run(2, a, 4, {0, 4}) == said);
  CHECK(run(3, a, 4, {2, 5}) != said);
}

TEST_CASE("Prompts whose ids differ by 256 do not meet") {
  RunnerInfo info = Info();
  info.vocab_size = 1000;
  std::mt19937_64 random(2);
  const std::vector<TokenId> low = RandomTokens(random, 30, 256);
  std::vector<TokenId> high = low;
  for (TokenId& token : high) token += 256;
  EngineStats off, on;
  const std::vector<Request> requests = {Ask("low", low, 8), Ask("high", high, 8),
                                         Ask("again", high, 8)};
  const auto said = Say(requests, info, Cached(false), false, &off);
  CHECK(Say(requests, info, Cached(true), false, &on) == said);
  CHECK(on.prefix_hit_tokens == 28);  // of "again" only
}

TEST_CASE("In a pool of two blocks two prompts evict each other for ever and say the same") {
  RunnerInfo info = WithBlocks(2);
  std::vector<Request> requests;
  for (int i = 0; i < 40; ++i) {
    std::vector<TokenId> prompt = {i % 2 ? 50 : 40, 2, 3, 4, 5};
    requests.push_back(Ask(absl::StrCat(i), prompt, 4));
    requests.back().sampling.seed = 1;
  }
  EngineStats off, on;
  const auto said = Say(requests, info, Cached(false), false, &off);
  CHECK(Say(requests, info, Cached(true), false, &on) == said);
  for (int i = 2; i < 40; ++i) REQUIRE(said[i] == said[i % 2]);
  CHECK(said[0] != said[1]);
  CHECK(on.evicted_blocks > 30);
  // Both beginnings fit side by side once their second blocks go: each is found until it is
  // evicted.
  CHECK(on.prefix_hit_tokens <= 4 * 40);
}

TEST_CASE("The same prompt again is computed from its last full block on, and says the same") {
  Harness h(Info());
  Request request = h.Make("a", 41, 9);
  request.sampling.seed = 7;
  REQUIRE(h.Add(request).ok());
  h.Finish();
  const auto first = h.Tokens("a");
  const uint64_t computed = h.engine().stats().computed_tokens;
  for (uint64_t length : {41u, 40u, 39u, 5u, 4u, 1u}) {
    request.id = absl::StrCat("again", length);
    request.prompt.resize(length);
    REQUIRE(h.Add(request).ok());
    h.Finish();
    // Full blocks of four, but never the last token: its logits are needed.
    CHECK(h.Outcome(request.id).cached_tokens == (length - 1) / 4 * 4);
    CHECK(h.Outcome(request.id).prompt_tokens == length);
  }
  CHECK(h.Tokens("again41") == first);
  CHECK(h.Outcome("a").cached_tokens == 0);
  const EngineStats stats = h.engine().stats();
  CHECK(stats.prefix_hit_tokens == 40 + 36 + 36 + 4 + 0 + 0);
  CHECK(stats.prefix_query_tokens == stats.prompt_tokens);
  CHECK(stats.computed_tokens - computed == (1 + 4 + 3 + 1 + 4 + 1) + 6 * 8);
}

TEST_CASE("Nothing can be found before the step that computed it has retired") {
  Harness h(Info(), {}, {.late = 1});  // Poll finds nothing: steps retire when Step waits for them
  // Less than half of b is a's: it is not worth waiting for.
  const Request b = h.Make("b", 101, 20), c = h.Make("c", 101, 20);
  REQUIRE(h.Add("a", 41, 20).ok());
  h.Step();  // one step in flight, nothing retired
  REQUIRE(h.engine().stats().steps == 1);
  REQUIRE(h.Add(b).ok());
  h.Step();  // b is admitted while a's prefill is in flight; then that retires
  REQUIRE(h.Add(c).ok());
  h.Finish();
  CHECK(h.Outcome("b").cached_tokens == 0);
  CHECK(h.Outcome("c").cached_tokens >= 40);  // shared with a, which is running
}

TEST_CASE("Of prompts that come together and begin alike one is computed, the others wait for it") {
  for (bool cached : {true, false}) {
    RunnerInfo info = Info();
    info.max_slots = 32;
    Harness h(info, Cached(cached));
    for (int i = 0; i < 20; ++i) {  // 100 of 110 tokens alike
      Request request = h.Make(absl::StrCat(i), 110, 5);
      request.prompt[100] = i;
      REQUIRE(h.Add(request).ok());
    }
    // Another one comes behind them and is not kept waiting.
    REQUIRE(h.Add(Ask("other", {9, 9, 9}, 5)).ok());
    h.Step();
    if (cached) CHECK(h.engine().stats().running == 2);
    h.Finish();
    const uint64_t computed = h.engine().stats().computed_tokens;
    CHECK(h.engine().stats().prefix_hit_tokens == (cached ? 19 * 100 : 0));
    CHECK(computed == (cached ? 110 + 19 * 10 : 20 * 110) + 3 + 21 * 4);
  }
}

TEST_CASE(
    "Those who wait for a prompt go on when it is cancelled, and do not wait behind less urgent "
    "ones") {
  EngineOptions options;
  options.scheduling_policy = SchedulingPolicy::kPriority;
  RunnerInfo info = Info();
  info.max_batched_tokens = 10;
  Harness h(info, options, {.late = 0});
  REQUIRE(h.Add("first", 200, 5).ok());
  for (int i = 0; i < 3; ++i) REQUIRE(h.Add(absl::StrCat(i), 200, 5).ok());
  for (int i = 0; i < 6; ++i) h.Step();
  CHECK(h.engine().stats().running == 1);
  CHECK(h.engine().stats().queued == 3);
  REQUIRE(h.engine().Cancel("first").ok());
  for (int i = 0; i < 3; ++i) h.Step();
  CHECK(h.engine().stats().running == 1);  // the next one computes it, from where "first" was
  Request urgent = h.Make("urgent", 200, 5);
  urgent.priority = -1;
  REQUIRE(h.Add(urgent).ok());
  for (int i = 0; i < 3; ++i) h.Step();
  CHECK(h.engine().stats().running == 2);
  h.Finish();
  CHECK(h.Outcome("0").cached_tokens >= 40);
  CHECK(h.Outcome("1").cached_tokens >= 150);
  CHECK(h.engine().stats().finished_length == 4);
}

TEST_CASE("A conversation reuses its own answers, and no empty chunk follows a hit") {
  RunnerInfo info = Info();
  info.max_model_len = 1024;
  info.max_batched_tokens = 512;
  info.block_size = 16;
  Harness h(info);
  std::mt19937_64 random(3);
  std::vector<TokenId> history;
  uint64_t turn = 0, known = 0;
  for (uint64_t length : {200u, 455u, 520u}) {
    const std::vector<TokenId> more = RandomTokens(random, length - history.size());
    history.insert(history.end(), more.begin(), more.end());
    const std::string id = absl::StrCat("turn", turn++);
    REQUIRE(h.Add(Ask(id, history, 30)).ok());
    h.Finish();
    CHECK(h.Outcome(id).cached_tokens == known / 16 * 16);
    const std::vector<TokenId> answer = h.Tokens(id);
    history.insert(history.end(), answer.begin(), answer.end());
    known = history.size() - 1;  // the last token was never read
  }
}

TEST_CASE("What a failed step has touched is not kept") {
  Harness h(Info(), {}, {.step_failure = 1});
  REQUIRE(h.Add("a", 41, 20).ok());
  h.Finish();
  CHECK(h.Outcome("a").finish_reason == FinishReason::kError);
  CHECK(h.engine().stats().kv_blocks_cached == 0);
}

TEST_CASE("What a runner says while it breaks its contract is not believed of KV either") {
  for (bool lies : {false, true}) {
    ManualClock clock;
    FakeRunner truth({.info = Info()});
    LyingRunner runner(&truth, 1, [&](StepOutcome* outcome) {
      if (lies) outcome->rows[0].tokens = {1, 2, 3};
    });
    auto engine = Engine::Create(&runner, &clock, {});
    REQUIRE(engine.ok());
    // The second step fills the first block.
    REQUIRE((*engine)->AddRequest(Ask("a", {1, 2, 3}, 3), nullptr).ok());
    while ((*engine)->HasWork()) REQUIRE((*engine)->Step().ok());
    CHECK((*engine)->stats().kv_blocks_cached == (lies ? 0 : 1));
    CHECK((*engine)->CheckIntegrity().ok());
  }
}

TEST_CASE("A cancelled request leaves what has retired and nothing else") {
  Harness h(Info(), {}, {.late = 1});
  REQUIRE(h.Add("a", 200, 20).ok());  // chunks of 64
  for (int i = 0; i < 3; ++i) REQUIRE(h.engine().Step().ok());
  REQUIRE(h.engine().Cancel("a").ok());
  h.Finish();
  const uint64_t cached = h.engine().stats().kv_blocks_cached;
  CHECK(cached >= 16);
  CHECK(cached < 50);
  REQUIRE(h.Add("b", 200, 5).ok());
  h.Finish();
  CHECK(h.Outcome("b").cached_tokens == cached * 4);
}

TEST_CASE("Blocks are shared by running requests: more of them fit than could alone") {
  RunnerInfo info = WithBlocks(64);
  Harness h(info);
  REQUIRE(h.Add("first", 161, 60).ok());
  for (int i = 0; i < 5; ++i) REQUIRE(h.engine().Step().ok());  // 40 blocks are published
  for (int i = 0; i < 3; ++i) REQUIRE(h.Add(absl::StrCat(i), 161, 8).ok());
  uint64_t most = 0;
  while (h.engine().HasWork()) {
    REQUIRE(h.engine().Step().ok());
    REQUIRE(h.engine().CheckIntegrity().ok());
    most = std::max(most, h.engine().stats().running);
  }
  CHECK(most == 4);  // 4 x 41 blocks without sharing
  CHECK(h.engine().stats().preemptions == 0);
  CHECK(h.engine().stats().prefix_hit_tokens == 3 * 160);
}

TEST_CASE("A preempted request finds what is left of its blocks when it comes back") {
  for (bool enabled : {false, true}) {
    Harness h(WithBlocks(55), Cached(enabled));  // each needs 30 at its end
    for (int i = 0; i < 2; ++i) {
      Request request = h.Make(absl::StrCat(i), 80, 40);
      request.prompt[0] = i;
      REQUIRE(h.Add(request).ok());
    }
    h.Finish();
    const EngineStats stats = h.engine().stats();
    CHECK(stats.finished_length == 2);
    CHECK(stats.preemptions == 1);
    CHECK(stats.prefix_hit_tokens == 0);
    CHECK((stats.resumed_hit_tokens > 0) == enabled);
  }
}

TEST_CASE("A reset forgets what nobody holds and leaves what is held") {
  Harness h(Info());
  REQUIRE(h.Add("a", 41, 9).ok());
  h.Finish();
  CHECK(h.engine().stats().kv_blocks_cached > 0);
  REQUIRE(h.Add("b", 21, 40).ok());
  for (int i = 0; i < 3; ++i) REQUIRE(h.engine().Step().ok());
  h.engine().ResetPrefixCache();
  CHECK(h.engine().stats().kv_blocks_cached == 0);
  CHECK(h.engine().stats().kv_blocks_used > 0);
  h.Finish();
  REQUIRE(h.Add("c", 41, 9).ok());
  h.Finish();
  CHECK(h.Outcome("c").cached_tokens == 20);  // b's prompt is a's beginning
}

}  // namespace
}  // namespace eventide
