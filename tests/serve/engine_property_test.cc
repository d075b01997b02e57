// Thousands of random lives of an engine on a fake device: tiny KV pools, two steps in flight,
// drafts, failures, cancels at any moment. After every call all accounts must agree; every accepted
// request has exactly one outcome; what it said is a prefix of (or equal to) what it would have
// said alone.
#include <random>

#include "absl/strings/str_cat.h"
#include "tests/serve/engine_harness.h"

namespace eventide {
namespace {

struct Watched {
  Request request;
  uint64_t key = 0;
  std::vector<TokenId> tokens;
  int outcomes = 0;
  bool cancelled = false;
  FinishReason reason = FinishReason::kNone;
};

struct Life {
  uint64_t seed;
  double failures = 0;  // of steps, submissions and admissions
  double cancels = 0;   // a step
  bool priorities = false;
};

constexpr TokenId kEos = 3;
constexpr uint64_t kEngineSeed = 77;

RunnerInfo RandomInfo(std::mt19937_64& random) {
  RunnerInfo info;
  info.max_slots = static_cast<uint32_t>(1 + random() % 9);
  info.max_batched_tokens = static_cast<uint32_t>(1 + random() % 40);
  info.max_model_len = 8 + random() % 120;
  info.block_size = static_cast<uint32_t>(random() % 2 ? 4 : 1 + random() % 16);
  const uint64_t maximal = MostBlocks(info.max_model_len, info.block_size);
  const double pools[] = {1.0, 1.2, 2.5, 8.0};  // of maximal requests
  info.num_blocks = static_cast<uint64_t>(pools[random() % 4] * static_cast<double>(maximal));
  info.max_draft_tokens = static_cast<uint32_t>(random() % 2 ? 0 : random() % 4);
  info.max_steps_in_flight = static_cast<uint32_t>(1 + random() % 2);
  info.vocab_size = static_cast<uint32_t>(5 + random() % 200);
  info.eos_tokens = {kEos};
  return info;
}

Request RandomRequest(std::mt19937_64& random, const RunnerInfo& info, int number) {
  Request request;
  request.id = absl::StrCat("r", number);
  const uint64_t length = 1 + random() % (info.max_model_len - 1);
  // Many prompts begin alike: with one of three texts, up to a random place.
  const uint64_t text = random() % 3, common = random() % 2 ? random() % (length + 1) : 0;
  for (uint64_t i = 0; i < length; ++i) {
    const uint64_t token = i < common ? CombineHash(text, i) : random();
    request.prompt.push_back(static_cast<TokenId>(token % info.vocab_size));
  }
  request.sampling.max_tokens = static_cast<uint32_t>(1 + random() % info.max_model_len);
  request.sampling.min_tokens = static_cast<uint32_t>(random() % 3 ? 0 : random() % 5);
  if (request.sampling.min_tokens > request.sampling.max_tokens) request.sampling.min_tokens = 0;
  request.sampling.ignore_eos = random() % 2;
  if (random() % 3 == 0) request.sampling.seed = random();
  // More stop tokens than the device takes: the host has to find the others.
  if (random() % 4 == 0) {
    for (TokenId t = 0; t < 12; ++t) {
      request.sampling.stop_token_ids.push_back(static_cast<TokenId>(info.vocab_size) - 1 - t * 3);
    }
  }
  return request;
}

// What the request says when nothing is in its way.
std::vector<TokenId> Alone(const Watched& w, const RunnerInfo& info) {
  const SamplingParams& s = w.request.sampling;
  std::set<TokenId> stops(s.stop_token_ids.begin(), s.stop_token_ids.end());
  if (!s.ignore_eos) stops.insert(kEos);
  const uint64_t prompt = w.request.prompt.size();
  const uint64_t max_length = std::min<uint64_t>(prompt + s.max_tokens, info.max_model_len);
  const uint64_t min_length = std::min<uint64_t>(prompt + s.min_tokens, max_length);
  return FakeRunner::Expected(w.request.prompt, w.key, max_length, min_length, stops,
                              info.vocab_size);
}

struct Tally {
  uint64_t preemptions = 0, finished = 0, aborted = 0, failed = 0, steps = 0, skipped = 0;
  uint64_t hits = 0, resumed_hits = 0, evictions = 0;
};

void Live(const Life& life, Tally* tally) {
  std::mt19937_64 random(life.seed);
  const RunnerInfo info = RandomInfo(random);
  ManualClock clock;
  FakeRunner runner({.info = info,
                     .seed = random(),
                     .late = static_cast<double>(random() % 3) / 2.0,
                     .step_failure = life.failures,
                     .submit_failure = life.failures,
                     .admit_failure = life.failures,
                     .clock = &clock});
  EngineOptions options;
  options.seed = kEngineSeed;
  options.draft_tokens = info.max_draft_tokens;
  options.scheduling_policy =
      life.priorities ? SchedulingPolicy::kPriority : SchedulingPolicy::kFcfs;
  options.prefix_cache = {.enabled = life.seed % 4 != 0,
                          .hash_bits = static_cast<uint32_t>(life.seed % 4 == 1 ? 1 : 64)};
  options.max_prefill_chunk = static_cast<uint32_t>(random() % 2 ? 0 : 1 + random() % 8);
  auto created = Engine::Create(&runner, &clock, options);
  REQUIRE(created.ok());
  Engine& engine = **created;

  const int total = static_cast<int>(1 + random() % 24);
  std::map<std::string, Watched> all;
  uint64_t accepted = 0;
  int number = 0;
  uint64_t last_progress = 0, idle_steps = 0;
  Watchdog watchdog;
  while (number < total || engine.HasWork()) {
    while (number < total && (random() % 3 == 0 || !engine.HasWork())) {
      Request request = RandomRequest(random, info, number++);
      if (life.priorities) request.priority = static_cast<int32_t>(random() % 3);
      Watched& w = all[request.id];
      w.request = request;
      w.key = request.sampling.seed.value_or(CombineHash(kEngineSeed, HashBytes(request.id)));
      REQUIRE(engine
                  .AddRequest(request,
                              [&w](const RequestOutput& output) {
                                REQUIRE(w.outcomes == 0);  // nothing follows the outcome
                                w.tokens.insert(w.tokens.end(), output.tokens.begin(),
                                                output.tokens.end());
                                REQUIRE(output.output_tokens == w.tokens.size());
                                if (output.finish_reason == FinishReason::kNone) return;
                                w.reason = output.finish_reason;
                                ++w.outcomes;
                              })
                  .ok());
      ++accepted;
    }
    if (std::uniform_real_distribution<>(0, 1)(random) < life.cancels) {
      std::string id = absl::StrCat("r", random() % static_cast<uint64_t>(total));
      bool live = all.contains(id) && all[id].outcomes == 0;
      absl::Status status = engine.Cancel(id);
      REQUIRE(status.ok() == live);
      if (live) all[id].cancelled = true;
      REQUIRE(engine.CheckIntegrity().ok());
    }
    absl::Status status = engine.Step();
    INFO(life.seed << ": " << status);
    REQUIRE(status.ok());
    absl::Status integrity = engine.CheckIntegrity();
    INFO(integrity);
    REQUIRE(integrity.ok());
    watchdog.Check(engine);
    // Computing is not enough: the oldest request needs at most a step for each token of its
    // prefill (budgets go down to one token) until somebody gets a token.
    const EngineStats now = engine.stats();
    const uint64_t progress = now.output_tokens + now.finished_abort + now.finished_error;
    idle_steps = progress == last_progress ? idle_steps + 1 : 0;
    last_progress = progress;
    REQUIRE(idle_steps <= 2 * info.max_model_len + 4);
  }
  const EngineStats stats = engine.stats();
  REQUIRE(stats.kv_blocks_used == 0);
  REQUIRE((options.prefix_cache.enabled || stats.kv_blocks_cached == 0));
  engine.ResetPrefixCache();
  REQUIRE(engine.stats().kv_blocks_cached == 0);
  REQUIRE(engine.CheckIntegrity().ok());
  REQUIRE(runner.used_slots() == 0);
  REQUIRE(runner.idle());
  REQUIRE(stats.accepted == accepted);
  REQUIRE(stats.finished_stop + stats.finished_length + stats.finished_abort +
              stats.finished_error ==
          accepted);
  for (auto& [id, w] : all) {
    INFO(life.seed << " " << id);
    REQUIRE(w.outcomes == 1);
    const std::vector<TokenId> alone = Alone(w, info);
    REQUIRE(w.tokens.size() <= alone.size());
    REQUIRE(std::equal(w.tokens.begin(), w.tokens.end(), alone.begin()));
    REQUIRE((w.reason == FinishReason::kAbort) == w.cancelled);
    if (life.failures == 0) REQUIRE(w.reason != FinishReason::kError);
    if (w.reason == FinishReason::kStop || w.reason == FinishReason::kLength) {
      REQUIRE(w.tokens == alone);
    }
  }
  tally->preemptions += stats.preemptions;
  tally->finished += stats.finished_stop + stats.finished_length;
  tally->aborted += stats.finished_abort;
  tally->failed += stats.finished_error;
  tally->steps += stats.steps;
  tally->skipped += runner.skipped_rows();
  tally->hits += stats.prefix_hit_tokens;
  tally->resumed_hits += stats.resumed_hit_tokens;
  tally->evictions += stats.evicted_blocks;
}

TEST_CASE("Requests say in any company, with any pool, pipeline and drafts, what they say alone") {
  Tally tally;
  for (uint64_t seed = 0; seed < 1500; ++seed) Live({.seed = seed}, &tally);
  // The histories do reach what they are meant to try.
  CHECK(tally.preemptions > 500);
  CHECK(tally.skipped > 100);
  CHECK(tally.finished > 10000);
  CHECK(tally.hits > 10000);
  CHECK(tally.resumed_hits > 3000);
  CHECK(tally.evictions > 10000);
}

TEST_CASE("Ten thousand interleavings of cancels end each request once and give each block back") {
  Tally tally;
  for (uint64_t seed = 0; seed < 10000; ++seed) {
    Live({.seed = 100000 + seed, .cancels = 0.2, .priorities = seed % 2 == 0}, &tally);
  }
  CHECK(tally.aborted > 1000);
  CHECK(tally.finished > 1000);
}

TEST_CASE("Failed steps, submissions and admissions end their own requests and no others") {
  Tally tally;
  for (uint64_t seed = 0; seed < 1500; ++seed) {
    Live({.seed = 200000 + seed, .failures = 0.02, .cancels = seed % 2 ? 0.1 : 0.0}, &tally);
  }
  CHECK(tally.failed > 1000);
  CHECK(tally.finished > 1000);
}

}  // namespace
}  // namespace eventide
