// Five thousand short requests through the real runner on the CPU: afterwards everything is as it
// was, and each said what it says alone.
#include <map>
#include <random>

#include "absl/strings/str_cat.h"
#include "models/presets.h"
#include "models/random_weights.h"
#include "serve/megakernel_runner.h"
#include "tests/serve/engine_harness.h"

namespace eventide {
namespace {

std::unique_ptr<MegakernelRunner> MakeRunner() {
  const auto source = RandomWeights(*PresetConfig("test-llama"), 3);
  RunnerOptions options;
  options.backend.device = "cpu";
  options.backend.workers = 2;
  options.limits.max_rows = 32;
  options.limits.max_outputs = 32;
  options.limits.max_tokens = 128;
  options.limits.max_model_len = 64;
  options.limits.block_size = 4;
  options.limits.num_blocks = 90;
  auto runner = MegakernelRunner::Create(*source, options);
  INFO(runner.status());
  REQUIRE(runner.ok());
  return std::move(*runner);
}

std::vector<Request> ShortRequests() {
  std::mt19937_64 random(12);
  std::vector<Request> requests(5000);
  for (size_t i = 0; i < requests.size(); ++i) {
    Request& request = requests[i];
    request.id = absl::StrCat(i);
    const uint64_t text = random() % 40, length = 1 + random() % 12;
    for (uint64_t t = 0; t < length; ++t) {
      request.prompt.push_back(static_cast<TokenId>(CombineHash(text, t) % 257));
    }
    request.sampling.max_tokens = static_cast<uint32_t>(1 + random() % 5);
    request.sampling.temperature = i % 2 ? 0.8f : 0.0f;
    request.sampling.ignore_eos = i % 3 != 0;
  }
  return requests;
}

TEST_CASE(
    "five thousand short requests on the CPU leave nothing behind and say what they say alone") {
  auto runner = MakeRunner();
  SteadyClock clock;
  auto created = Engine::Create(runner.get(), &clock, {});
  REQUIRE(created.ok());
  Engine& engine = **created;
  const std::vector<Request> requests = ShortRequests();
  std::map<std::string, std::vector<TokenId>> said;
  uint64_t outcomes = 0;
  const auto callback = [&](const RequestOutput& output) {
    auto& tokens = said[output.id];
    tokens.insert(tokens.end(), output.tokens.begin(), output.tokens.end());
    if (output.finish_reason == FinishReason::kNone) return;
    ++outcomes;
    CHECK(output.status.ok());
  };
  Watchdog watchdog;
  for (size_t i = 0; i < requests.size() || engine.HasWork();) {
    for (int burst = 0; burst < 20 && i < requests.size(); ++burst) {
      REQUIRE(engine.AddRequest(requests[i++], callback).ok());
    }
    REQUIRE(engine.Step().ok());
    watchdog.Check(engine);
    if (engine.stats().steps % 50 == 0) REQUIRE(engine.CheckIntegrity().ok());
  }
  const EngineStats stats = engine.stats();
  CHECK(outcomes == 5000);
  CHECK(stats.finished_stop + stats.finished_length == 5000);
  CHECK(stats.prefix_hit_tokens > 5000);
  CHECK(stats.evicted_blocks > 500);
  CHECK(stats.kv_blocks_used == 0);
  engine.ResetPrefixCache();
  CHECK(engine.CheckIntegrity().ok());

  const auto together = said;
  said.clear();
  for (size_t i = 0; i < requests.size(); i += 97) {
    REQUIRE(engine.AddRequest(requests[i], callback).ok());
    while (engine.HasWork()) REQUIRE(engine.Step().ok());
    engine.ResetPrefixCache();
    INFO(i);
    CHECK(said[requests[i].id] == together.at(requests[i].id));
  }
  CHECK(said.size() == 52);
}

}  // namespace
}  // namespace eventide
