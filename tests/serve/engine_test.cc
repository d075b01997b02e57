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

TEST_CASE("A prompt up to the model's length yields one token") {
  Harness h(Info());
  REQUIRE(h.Add("a", 255, 50).ok());
  h.Finish();
  CHECK(h.Tokens("a").size() == 1);
  CHECK(h.Outcome("a").finish_reason == FinishReason::kLength);
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

}  // namespace
}  // namespace eventide
