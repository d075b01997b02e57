// The engine, one situation at a time; many are small forms of faults that users of other engines
// met.
#include "serve/engine.h"

#include "absl/strings/str_cat.h"
#include "tests/serve/engine_harness.h"

namespace eventide {
namespace {

TEST_CASE("A pool of 1.2 maximal requests serves twenty arrivals at once") {
  Harness h(WithBlocks(76));  // a maximal request needs 64
  for (int i = 0; i < 20; ++i) REQUIRE(h.Add(absl::StrCat(i), 100, 200).ok());
  h.Finish();
  CHECK(h.engine().stats().finished_length == 20);
}

TEST_CASE(
    "A request above half the pool among a stream of small ones finishes without a preemption "
    "storm") {
  Harness h(WithBlocks(70));
  REQUIRE(h.Add("small0", 10, 20).ok());
  REQUIRE(h.Add("huge", 150, 106).ok());
  for (int i = 1; i < 200; ++i) REQUIRE(h.Add(absl::StrCat("small", i), 10, 20).ok());
  h.Finish();
  CHECK(h.engine().stats().finished_length == 201);
  CHECK(h.engine().stats().preemptions < 100);
  CHECK(h.Tokens("huge").size() == 106);
}

TEST_CASE("Long outputs in a pool for two and a half of them are preempted, come back and finish") {
  RunnerInfo info = WithBlocks(400);
  info.max_model_len = 640;  // 160 blocks each
  Harness h(info);
  for (int i = 0; i < 8; ++i) REQUIRE(h.Add(absl::StrCat(i), 8, 600).ok());
  h.Finish();
  CHECK(h.engine().stats().finished_length == 8);
  CHECK(h.engine().stats().preemptions > 0);
  CHECK(h.engine().stats().preemptions < 60);
  CHECK(h.engine().stats().output_tokens == 8 * 600);
}

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

TEST_CASE("A prompt up to the model's length yields one token") {
  Harness h(Info());
  REQUIRE(h.Add("a", 255, 50).ok());
  h.Finish();
  CHECK(h.Tokens("a").size() == 1);
  CHECK(h.Outcome("a").finish_reason == FinishReason::kLength);
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

TEST_CASE("An abort that races the last token is one outcome, and the blocks come back once") {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Harness h(Info(), {}, {.seed = seed});
    REQUIRE(h.Add("a", 5, 1 + static_cast<uint32_t>(seed % 4)).ok());
    REQUIRE(h.Add("b", 9, 6).ok());
    for (uint64_t i = 0; i < seed % 7; ++i) REQUIRE(h.engine().Step().ok());
    const bool ended = !h.engine().Cancel("a").ok();
    h.Finish();
    CHECK(h.Outcome("a").finish_reason == (ended ? FinishReason::kLength : FinishReason::kAbort));
    CHECK(h.Outcome("b").finish_reason == FinishReason::kLength);
    CHECK(absl::IsNotFound(h.engine().Cancel("a")));
  }
}

TEST_CASE("A thousand clients that come and go leave nothing behind") {
  Harness h(Info());
  for (int i = 0; i < 1000; ++i) {
    REQUIRE(h.Add("client", 20, 100).ok());
    for (int s = 0; s < i % 4; ++s) REQUIRE(h.engine().Step().ok());
    REQUIRE(h.engine().Cancel("client").ok());  // the id is free again at once
  }
  h.Finish();
  CHECK(h.engine().stats().finished_abort == 1000);
}

TEST_CASE("A callback may cancel its own request and add others") {
  Harness h(Info());
  int outcomes = 0;
  REQUIRE(h.engine()
              .AddRequest(h.Make("first", 4, 50),
                          [&](const RequestOutput& output) {
                            if (output.finish_reason != FinishReason::kNone) {
                              CHECK(output.finish_reason == FinishReason::kAbort);
                              ++outcomes;
                            } else if (output.output_tokens == 3) {
                              CHECK(h.engine().Cancel("first").ok());
                              CHECK(h.Add("second", 4, 2).ok());
                            }
                          })
              .ok());
  h.Finish();
  CHECK(outcomes == 1);
  CHECK(h.Tokens("second").size() == 2);
  CHECK(h.Outcome("second").finish_reason == FinishReason::kLength);
}

TEST_CASE("Without a seed a request's output follows from the engine's seed and its id alone") {
  auto say = [](uint64_t engine_seed, const std::string& id, int neighbours) {
    EngineOptions options;
    options.seed = engine_seed;
    Harness h(Info(), options);
    for (int i = 0; i < neighbours; ++i) REQUIRE(h.Add(absl::StrCat("n", i), 5, 9).ok());
    REQUIRE(h.Add(id, 5, 9).ok());
    h.Finish();
    return h.Tokens(id);
  };
  CHECK(say(1, "a", 0) == say(1, "a", 11));
  CHECK(say(1, "a", 0) != say(2, "a", 0));
  CHECK(say(1, "a", 0) != say(1, "b", 0));
}

TEST_CASE("Statistics count what happened") {
  Harness h(Info());
  REQUIRE(h.Add("a", 10, 5).ok());
  REQUIRE(h.Add("b", 20, 1).ok());
  h.clock().Advance(5'000'000);
  CHECK(h.engine().stats().queued == 2);
  CHECK(h.engine().stats().running == 0);
  REQUIRE(h.engine().Step().ok());
  CHECK(h.engine().stats().running == 2);
  CHECK(h.engine().stats().kv_usage() > 0);
  h.Finish();
  EngineStats stats = h.engine().stats();
  CHECK(stats.prompt_tokens == 30);
  CHECK(stats.output_tokens == 6);
  CHECK(stats.computed_tokens == 34);  // 30 of prompts, 4 of decode rows
  CHECK(stats.max_batch == 2);
  CHECK(stats.distinct_shapes == 5);  // one mixed step, then four contexts
  REQUIRE(h.engine().ttft_seconds().size() == 2);
  CHECK(h.engine().ttft_seconds()[0] == Approx(0.006));  // 5 ms before the first step of 1 ms
  REQUIRE(h.engine().tpot_seconds().size() == 1);
  CHECK(h.engine().tpot_seconds()[0] == Approx(0.001));
}

TEST_CASE("The device is idle between steps while there are requests, and not when there were none") {
  FakeRunnerOptions fake;
  fake.step_ms = 3;
  fake.gap_ms = 0.5;
  Harness h(Info(), {}, fake);
  for (int round = 1; round <= 3; ++round) {
    const uint64_t before = h.engine().stats().steps;
    const double idle = h.engine().stats().idle_seconds;
    REQUIRE(h.Add("a", 10, 5).ok());
    REQUIRE(h.Add("b", 20, 9).ok());
    h.Finish();
    const EngineStats stats = h.engine().stats();
    CHECK(stats.step_seconds == Approx(0.003 * static_cast<double>(stats.steps)));
    // What passed before the round's first step was nobody's waiting.
    CHECK(stats.idle_seconds - idle == Approx(0.0005 * static_cast<double>(stats.steps - before - 1)));
  }
  Harness untimed(Info());
  REQUIRE(untimed.Add("a", 10, 5).ok());
  untimed.Finish();
  CHECK(untimed.engine().stats().step_seconds == 0);
  CHECK(untimed.engine().stats().idle_seconds == 0);
}

// Text: each token is its number and a space; stops at "5 7 ".
class NumberSink final : public TextSink {
 public:
  explicit NumberSink(std::vector<std::string> stops) : stops_(std::move(stops)) {}
  absl::StatusOr<TextDelta> Append(TokenId token) override {
    text_ += absl::StrCat(token, " ");
    for (const std::string& stop : stops_) {
      size_t at = text_.find(stop);
      if (at == std::string::npos) continue;
      std::string rest = text_.substr(shown_, at - shown_);
      shown_ = text_.size();
      return TextDelta{rest, true};
    }
    // Holds the last 8 bytes back.
    size_t show = text_.size() > shown_ + 8 ? text_.size() - shown_ - 8 : 0;
    TextDelta delta{text_.substr(shown_, show), false};
    shown_ += show;
    return delta;
  }
  std::string Finish() override { return text_.substr(shown_); }

 private:
  std::vector<std::string> stops_;
  std::string text_;
  size_t shown_ = 0;
};

TEST_CASE("Stop strings end a request on the host while surplus steps are in flight") {
  EngineOptions options;
  options.text_sink = [](const Request& request) {
    return std::make_unique<NumberSink>(request.sampling.stop_strings);
  };
  Harness free(Info(), options);
  REQUIRE(free.Add("a", 6, 40).ok());
  free.Finish();
  const std::vector<TokenId> tokens = free.Tokens("a");
  std::string all;
  for (TokenId token : tokens) all += absl::StrCat(token, " ");
  CHECK(free.Text("a") == all);  // what was held back is flushed at the end

  const std::string stop = absl::StrCat(tokens[10], " ", tokens[11], " ");
  Harness h(Info(), options);
  Request request = h.Make("a", 6, 40);
  request.sampling.stop_strings = {stop};
  REQUIRE(h.Add(request).ok());
  REQUIRE(h.Add("b", 6, 40).ok());
  h.Finish();
  CHECK(h.Outcome("a").finish_reason == FinishReason::kStop);
  CHECK(h.Tokens("a") == std::vector<TokenId>(tokens.begin(), tokens.begin() + 12));
  CHECK(h.Text("a") == all.substr(0, all.find(stop)));
  CHECK(h.Tokens("b").size() == 40);
}

TEST_CASE("A stop token ends a request with its id but not its text, not before min_tokens") {
  Harness free(Info());
  REQUIRE(free.Add("a", 6, 40).ok());
  free.Finish();
  const std::vector<TokenId> tokens = free.Tokens("a");
  EngineOptions options;
  options.text_sink = [](const Request&) {
    return std::make_unique<NumberSink>(std::vector<std::string>());
  };
  Harness h(Info(), options);
  Request request = h.Make("a", 6, 40);
  request.sampling.stop_token_ids = {tokens[4]};
  const auto first = std::find(tokens.begin(), tokens.end(), tokens[4]);
  REQUIRE(h.Add(request).ok());
  h.Finish();
  CHECK(h.Tokens("a") == std::vector<TokenId>(tokens.begin(), first + 1));
  CHECK(h.Outcome("a").finish_reason == FinishReason::kStop);
  CHECK(h.Text("a").find(absl::StrCat(tokens[4], " ")) == std::string::npos);

  h.outputs.clear();
  request.sampling.min_tokens = static_cast<uint32_t>(first - tokens.begin()) + 2;
  REQUIRE(h.Add(request).ok());
  h.Finish();
  CHECK(h.Tokens("a").size() >= request.sampling.min_tokens);
}

TEST_CASE("More urgent requests are admitted first") {
  RunnerInfo info = Info();
  info.max_slots = 1;
  EngineOptions options;
  options.scheduling_policy = SchedulingPolicy::kPriority;
  Harness h(info, options);
  for (int i = 0; i < 3; ++i) {
    Request request = h.Make(absl::StrCat(i), 4, 4);
    request.priority = 2 - i;
    REQUIRE(h.Add(request).ok());
  }
  h.Finish();
  std::vector<std::string> order;
  for (const auto& output : h.outputs) {
    if (output.finish_reason != FinishReason::kNone) order.push_back(output.id);
  }
  CHECK(order == std::vector<std::string>{"2", "1", "0"});
  // In order of arrival, a priority would be ignored: refused instead.
  Harness fcfs(info);
  Request urgent = fcfs.Make("urgent", 4, 4);
  urgent.priority = -1;
  CHECK(std::string(fcfs.Add(urgent).message()).find("fcfs") != std::string::npos);
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
