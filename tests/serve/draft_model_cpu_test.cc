// Speculation with a draft model through the real engine and runner on the CPU.
#include "tests/serve/draft_model_case.h"

namespace eventide {
namespace {

std::vector<uint32_t> AllLengths() {
  std::vector<uint32_t> lengths;
  for (uint32_t drafts = 1; drafts <= kMaxDraftTokens; ++drafts) lengths.push_back(drafts);
  return lengths;
}

TEST_CASE("a draft model, half right or of another seed, changes no token, for every draft length") {
  CheckDraftModels("cpu", AllLengths(), 40);
}

TEST_CASE("a model that drafts for itself is always right, for 500 greedy tokens") {
  CheckOwnDraftModel("cpu", 500, {1, 4, 16});
}

TEST_CASE("a draft model's KV is what it computes alone from the accepted tokens") {
  for (const uint32_t drafts : {1u, 3u, 16u}) {
    const Served served = CheckDraftKv({.draft_model = DraftModelOptions{}}, drafts, AlikeRequests(60));
    CHECK(served.stats.prefix_hit_tokens > 0);
  }
  // Always right: what the last draft leaves out is caught up with in every step.
  const Served right = CheckDraftKv({.draft_model = DraftModelOptions{.layers = kTargetLayers}}, 4,
                                    Greedy(AlikeRequests(60)));
  CHECK(right.stats.drafts.acceptance() == 1);
}

TEST_CASE("blocks that a request leaves behind have the draft model's KV of all their tokens") {
  // One after the other; each begins with all that the one before has said, whose last drafts were right.
  const DraftModelOptions same = {.layers = kTargetLayers};
  std::vector<Request> requests = Greedy(SomeRequests(20));
  requests.resize(5);
  for (Request& request : requests) request.sampling.max_tokens = 20;
  for (size_t i = 1; i < requests.size(); ++i) {
    const Served said = Serve(MakeDraftRunner({}).get(), {requests[i - 1]}, 0);
    requests[i].prompt = requests[i - 1].prompt;
    const Tokens& answer = said.tokens.at(requests[i - 1].id);
    requests[i].prompt.insert(requests[i].prompt.end(), answer.begin(), answer.end());
    requests[i].prompt.push_back(7);  // so that each ends elsewhere in a block
  }
  EngineOptions engine;
  engine.max_num_seqs = 1;
  for (const uint32_t drafts : {1u, 4u}) {
    const Served served = CheckDraftKv({.draft_model = same}, drafts, requests, engine);
    CHECK(served.stats.drafts.acceptance() == 1);
    CHECK(served.stats.prefix_hit_tokens > 100);
  }
}

TEST_CASE("KV of another draft model would be noticed") {
  const DraftRunnerOptions options = {.draft_model = DraftModelOptions{}};
  auto runner = MakeDraftRunner(options);
  DraftKvChecker checker(options, DraftModelOptions{.seed = 12}, runner.get());
  Serve(&checker, SomeRequests(10), 3);
  CHECK(checker.wrong() == checker.compared());
}

TEST_CASE("a draft model's KV survives preemption, with the prefix cache and without, and chunks") {
  for (const bool prefix_cache : {true, false}) {
    EngineOptions engine;
    engine.prefix_cache.enabled = prefix_cache;
    engine.max_prefill_chunk = 7;
    const Served served = CheckDraftKv(
        {.num_blocks = 64, .draft_model = DraftModelOptions{.layers = kTargetLayers}}, 5,
        AlikeRequests(100), engine);
    CHECK(served.stats.preemptions > 0);
    CHECK((served.stats.prefix_hit_tokens > 0) == prefix_cache);
  }
}

TEST_CASE("a draft model of shorter sequences drafts as far as it goes, and prompts may be longer") {
  const auto serve = [](int positions) {
    const DraftModelOptions model = {.layers = kTargetLayers, .max_positions = positions};
    const std::vector<Request> requests = AlikeRequests(50);
    return CheckDraftKv({.draft_model = model}, 4, positions % 2 == 0 ? Greedy(requests) : requests);
  };
  for (const int positions : {20, 41, 64}) {
    const Served served = serve(positions), whole = serve(2048 + positions % 2);
    CHECK(served.stats.drafts.drafted < whole.stats.drafts.drafted);
    CHECK(served.stats.steps > whole.stats.steps);
  }
}

TEST_CASE("stop tokens and lengths end requests in the midst of a draft model's drafts") {
  const DraftModelOptions same = {.layers = kTargetLayers};
  auto runner = MakeDraftRunner({.draft_model = same});
  std::vector<Request> requests = SomeRequests(300);  // more than the model's 256 hold
  const Served whole = Serve(runner.get(), requests, 0);
  for (size_t i = 0; i < requests.size(); ++i) {
    const Tokens& said = whole.tokens.at(requests[i].id);
    if (i % 3 == 1) requests[i].sampling.stop_token_ids = {said[20 + i]};
    if (i % 3 == 2) requests[i].sampling.max_tokens = static_cast<uint32_t>(17 + 3 * i);
    if (i == 4) requests[i].sampling.min_tokens = 60;
  }
  const Served plain = Serve(runner.get(), requests, 0);
  CHECK(plain.stats.finished_stop >= 2);
  for (const uint32_t drafts : {1u, 3u, 16u}) {
    const Served served = Serve(runner.get(), requests, drafts);
    CHECK(served.tokens == plain.tokens);
    CHECK(served.reasons == plain.reasons);
  }
}

TEST_CASE("requests cancelled while a draft model drafts had said what they would have said") {
  auto runner = MakeDraftRunner({.num_blocks = 100, .draft_model = DraftModelOptions{}});
  CheckCancelled(runner.get());
}

TEST_CASE("where logits have room for few of a draft model's drafts, every row has its token") {
  const std::vector<Request> requests = SomeRequests(30);
  const Served plain = Serve(MakeDraftRunner({}).get(), requests, 0);
  for (const int outputs : {8, 9, 20}) {
    const DraftModelOptions same = {.layers = kTargetLayers};
    auto runner = MakeDraftRunner({.outputs = outputs, .draft_model = same});
    const Served served = Serve(runner.get(), requests, 8);
    CHECK(served.tokens == plain.tokens);
    CHECK((served.stats.drafts.accepted > 0) == (outputs > 8));
  }
}

TEST_CASE("where steps of either model cannot be submitted, their requests end and later ones do not notice") {
  auto runner = MakeDraftRunner({.draft_model = DraftModelOptions{}});
  const std::vector<Request> requests = SomeRequests(20);
  const Served plain = Serve(runner.get(), requests, 0);
  SteadyClock clock;
  EngineOptions options;
  options.draft_tokens = 3;
  auto engine = Engine::Create(runner.get(), &clock, options);
  REQUIRE(engine.ok());
  int failed = 0;
  std::map<std::string, Tokens> tokens;
  const auto add = [&](size_t i) {
    REQUIRE((*engine)->AddRequest(requests[i], [&](const RequestOutput& output) {
      failed += output.finish_reason == FinishReason::kError;
      Tokens& all = tokens[output.id];
      all.insert(all.end(), output.tokens.begin(), output.tokens.end());
    }).ok());
  };
  for (Executor* busy : {&runner->draft_model()->executor(), &runner->executor()}) {
    tokens.clear();
    failed = 0;
    for (size_t i = 0; i < 3; ++i) add(i);
    for (int step = 0; step < 5; ++step) REQUIRE((*engine)->Step().ok());
    (*engine)->Drain();
    // Steps of no rows, in the place of those that the engine wants.
    StepHeader nothing = {};
    nothing.symbols[1] = kSumOfRows;
    for (int i = 0; i < busy->MaxInFlight(); ++i) REQUIRE(busy->Submit(nothing).ok());
    while (failed < 3) REQUIRE((*engine)->Step().ok());
    for (int i = 0; i < busy->MaxInFlight(); ++i) REQUIRE(busy->Wait().ok());
    tokens.clear();
    for (size_t i = 0; i < requests.size(); ++i) add(i);
    while ((*engine)->HasWork()) REQUIRE((*engine)->Step().ok());
    CHECK(tokens == plain.tokens);
    CHECK(failed == 3);
    CHECK((*engine)->CheckIntegrity().ok());
  }
}

TEST_CASE("a draft model with another vocabulary is refused, naming both") {
  const auto source = RandomWeights(*PresetConfig("test-llama"), 1);
  const auto other = RandomWeights(DraftConfig({.vocab = 300}), 1);
  RunnerOptions options = OptionsFor({});
  options.draft_model = other.get();
  const auto runner = MegakernelRunner::Create(*source, options);
  REQUIRE(runner.status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(std::string(runner.status().message()).find("a vocabulary of 300 tokens and the model one of 257") !=
        std::string::npos);
}

}  // namespace
}  // namespace eventide
