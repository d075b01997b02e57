// What the engine refuses, and requests that end with an error: those concerned, and nobody else.
#include "absl/strings/str_cat.h"
#include "serve/engine.h"
#include "tests/serve/engine_harness.h"

namespace eventide {
namespace {

TEST_CASE(
    "What can never fit is refused at once with the limit that it breaks, and nothing else "
    "suffers") {
  RunnerInfo info = WithBlocks(10);
  Harness h(info);
  REQUIRE(h.Add("fits", 10, 31).ok());  // 41 tokens, of which 40 have KV
  absl::Status pool = h.Add("pool", 10, 32);
  CHECK(absl::IsInvalidArgument(pool));
  CHECK(std::string(pool.message()).find("num_blocks") != std::string::npos);
  absl::Status model = h.Add("model", 256, 1);
  CHECK(std::string(model.message()).find("max_model_len") != std::string::npos);
  CHECK(absl::IsAlreadyExists(h.Add("fits", 2, 2)));
  Request outside = h.Make("outside", 3, 3);
  outside.prompt[1] = 100;
  CHECK(std::string(h.Add(outside).message()).find("vocabulary") != std::string::npos);
  h.Finish();
  CHECK(h.Outcome("fits").finish_reason == FinishReason::kLength);
  CHECK(h.outputs.back().output_tokens == 31);
  CHECK(h.engine().stats().refused == 4);
}

TEST_CASE("Bad sampling values are refused with the field's name") {
  Harness h(Info());
  auto refused = [&](const char* field, auto change) {
    Request request = h.Make("x", 3, 3);
    change(request.sampling);
    absl::Status status = h.Add(request);
    INFO(status);
    CHECK(absl::IsInvalidArgument(status));
    CHECK(std::string(status.message()).find(field) != std::string::npos);
  };
  refused("max_tokens", [](SamplingParams& s) { s.max_tokens = 0; });
  refused("min_tokens", [](SamplingParams& s) { s.min_tokens = 9; });
  refused("temperature", [](SamplingParams& s) { s.temperature = -1; });
  refused("temperature", [](SamplingParams& s) { s.temperature = 0.0f / 0.0f; });
  refused("top_p", [](SamplingParams& s) { s.top_p = 0; });
  refused("top_p", [](SamplingParams& s) { s.top_p = 1.5f; });
  refused("stop string", [](SamplingParams& s) { s.stop_strings = {""}; });
  refused("tokenizer", [](SamplingParams& s) { s.stop_strings = {"x"}; });
  Request empty = h.Make("x", 0, 3);
  CHECK(std::string(h.Add(empty).message()).find("prompt is empty") != std::string::npos);
  CHECK_FALSE(h.engine().HasWork());
}

TEST_CASE("A full queue refuses and serves on") {
  EngineOptions options;
  options.max_queued_requests = 3;
  Harness h(Info(), options);
  for (int i = 0; i < 3; ++i) REQUIRE(h.Add(absl::StrCat(i), 3, 3).ok());
  CHECK(absl::IsResourceExhausted(h.Add("late", 3, 3)));
  h.Finish();
  REQUIRE(h.Add("late", 3, 3).ok());
  h.Finish();
  CHECK(h.engine().stats().finished_length == 4);
}

TEST_CASE("Options beyond what the runner offers are refused by name") {
  ManualClock clock;
  FakeRunner runner({.info = Info()});
  auto message = [&](EngineOptions options) {
    auto engine = Engine::Create(&runner, &clock, std::move(options));
    REQUIRE_FALSE(engine.ok());
    return std::string(engine.status().message());
  };
  EngineOptions options;
  options.max_num_seqs = 9;
  CHECK(message(options).find("max_num_seqs") != std::string::npos);
  options = {};
  options.max_num_batched_tokens = 65;
  CHECK(message(options).find("max_num_batched_tokens") != std::string::npos);
  options = {};
  options.max_model_len = 257;
  CHECK(message(options).find("max_model_len") != std::string::npos);
  options = {};
  options.draft_tokens = 1;
  CHECK(message(options).find("draft_tokens") != std::string::npos);
  options = {};
  options.max_steps_in_flight = 3;
  CHECK(message(options).find("max_steps_in_flight") != std::string::npos);
}

TEST_CASE("A request whose logits are no numbers ends with an error that names it; the others live on") {
  for (const uint32_t drafts : {0u, 3u}) {
    for (uint64_t seed = 1; seed <= 30; ++seed) {
      FakeRunnerOptions fake;
      fake.seed = seed;
      // Behind 20 tokens of one of the prompts; drafts may get there in the middle of a row.
      fake.no_number = [](const std::vector<TokenId>& history) { return history.size() == 20 && history[0] == 42; };
      RunnerInfo info = Info();
      info.max_draft_tokens = drafts;
      EngineOptions options;
      options.draft_tokens = drafts;
      Harness h(info, options, fake);
      Request broken = h.Make("broken", 7, 50);
      broken.prompt[0] = 42;
      REQUIRE(h.Add("before", 10, 50).ok());
      REQUIRE(h.Add(broken).ok());
      REQUIRE(h.Add("behind", 12, 50).ok());
      h.Finish();
      const RequestOutput outcome = h.Outcome("broken");
      CHECK(outcome.finish_reason == FinishReason::kError);
      CHECK(absl::IsDataLoss(outcome.status));
      for (const char* part : {"request broken", "20 tokens", "NaN", "bfloat16"}) {
        CHECK(std::string(outcome.status.message()).find(part) != std::string::npos);
      }
      CHECK(h.Tokens("broken").size() == 13);
      for (const char* id : {"before", "behind"}) {
        CHECK(h.Outcome(id).finish_reason == FinishReason::kLength);
        CHECK(h.Tokens(id).size() == 50);
      }
      CHECK(h.engine().stats().finished_error == 1);
      CHECK(h.engine().stats().failed_steps == 0);
    }
  }
}

TEST_CASE("A runner that breaks its contract costs the requests concerned, not the engine") {
  const std::vector<LyingRunner::Lie> lies = {
      [](StepOutcome* o) { o->rows[0].slot += 1; },
      [](StepOutcome* o) { o->rows.clear(); },
      [](StepOutcome* o) { o->step += 1; },
      [](StepOutcome* o) { o->rows[0].tokens = {100}; },
      [](StepOutcome* o) { o->rows[0].tokens = {-1}; },
      [](StepOutcome* o) {
        o->rows[0].tokens = {1, 2, 3};
      },
      [](StepOutcome* o) { o->rows[0].tokens.clear(); },
      [](StepOutcome* o) { o->rows[0].finished = true; },
      [](StepOutcome* o) { o->status = absl::InternalError("stuck"); }};
  for (const auto& lie : lies) {
    ManualClock clock;
    FakeRunner truth({.info = Info()});
    LyingRunner runner(&truth, 2, lie);
    auto engine = Engine::Create(&runner, &clock, {});
    REQUIRE(engine.ok());
    std::vector<RequestOutput> ends;
    auto add = [&](const std::string& id) {
      Request request;
      request.id = id;
      request.prompt = {1, 2, 3};
      request.sampling.max_tokens = 10;
      REQUIRE((*engine)
                  ->AddRequest(request,
                               [&](const RequestOutput& output) {
                                 if (output.finish_reason != FinishReason::kNone)
                                   ends.push_back(output);
                               })
                  .ok());
    };
    add("victim");
    while ((*engine)->HasWork()) REQUIRE((*engine)->Step().ok());
    REQUIRE(ends.size() == 1);
    CHECK(ends[0].finish_reason == FinishReason::kError);
    CHECK_FALSE(ends[0].status.ok());
    add("next");
    while ((*engine)->HasWork()) REQUIRE((*engine)->Step().ok());
    REQUIRE(ends.size() == 2);
    CHECK(ends[1].finish_reason == FinishReason::kLength);
    CHECK((*engine)->CheckIntegrity().ok());
  }
}

}  // namespace
}  // namespace eventide
