// An engine on a fake device and what its requests said, for tests that tell one situation at a
// time.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "serve/engine.h"
#include "tests/serve/fake_runner.h"
#include "tests/support/test.h"

namespace eventide {

inline RunnerInfo Info() {
  RunnerInfo info;
  info.max_slots = 8;
  info.max_batched_tokens = 64;
  info.max_model_len = 256;
  info.block_size = 4;
  info.num_blocks = 256;
  info.max_steps_in_flight = 2;
  info.vocab_size = 100;
  return info;
}

// Notices an engine that turns without getting anywhere: of a few calls of Step in a row at least
// one must have computed a token or ended a request.
class Watchdog {
 public:
  // After each Step.
  void Check(const Engine& engine) {
    const EngineStats s = engine.stats();
    const uint64_t progress = s.computed_tokens + s.finished_stop + s.finished_length +
                              s.finished_abort + s.finished_error;
    idle_ = progress == last_ ? idle_ + 1 : 0;
    last_ = progress;
    // Two steps in flight may hold rows of ended requests only; a third call preempts, a fourth
    // waits for what was preempted.
    REQUIRE(idle_ <= 4);
  }

 private:
  uint64_t last_ = 0, idle_ = 0;
};

// An engine on a fake device, and what its requests said.
class Harness {
 public:
  explicit Harness(RunnerInfo info, EngineOptions options = {}, FakeRunnerOptions fake = {})
      : runner_(With(fake, info, &clock_)) {
    auto engine = Engine::Create(&runner_, &clock_, std::move(options));
    REQUIRE(engine.ok());
    engine_ = *std::move(engine);
  }

  Request Make(const std::string& id, uint64_t prompt, uint32_t max_tokens) {
    Request request;
    request.id = id;
    for (uint64_t i = 0; i < prompt; ++i)
      request.prompt.push_back(static_cast<TokenId>((i * 7 + 1) % 100));
    request.sampling.max_tokens = max_tokens;
    return request;
  }
  absl::Status Add(Request request) {
    return engine_->AddRequest(std::move(request),
                               [this](const RequestOutput& output) { outputs.push_back(output); });
  }
  absl::Status Add(const std::string& id, uint64_t prompt, uint32_t max_tokens) {
    return Add(Make(id, prompt, max_tokens));
  }
  // One call of Step under the watchdog; all accounts agree afterwards.
  void Step() {
    REQUIRE(engine_->Step().ok());
    const absl::Status integrity = engine_->CheckIntegrity();
    INFO(integrity);
    REQUIRE(integrity.ok());
    watchdog_.Check(*engine_);
  }
  // Until all is done.
  void Finish() {
    while (engine_->HasWork()) Step();
    REQUIRE(engine_->stats().kv_blocks_used == 0);
    REQUIRE(runner_.used_slots() == 0);
  }
  std::vector<TokenId> Tokens(const std::string& id) const {
    std::vector<TokenId> tokens;
    for (const auto& output : outputs) {
      if (output.id == id) tokens.insert(tokens.end(), output.tokens.begin(), output.tokens.end());
    }
    return tokens;
  }
  std::string Text(const std::string& id) const {
    std::string text;
    for (const auto& output : outputs) text += output.id == id ? output.text : "";
    return text;
  }
  RequestOutput Outcome(const std::string& id) const {
    std::vector<RequestOutput> found;
    for (const auto& output : outputs) {
      if (output.id == id && output.finish_reason != FinishReason::kNone) found.push_back(output);
    }
    REQUIRE(found.size() == 1);
    return found[0];
  }
  Engine& engine() { return *engine_; }
  ManualClock& clock() { return clock_; }

  std::vector<RequestOutput> outputs;

 private:
  static FakeRunnerOptions With(FakeRunnerOptions fake, RunnerInfo info, ManualClock* clock) {
    fake.info = std::move(info);
    fake.clock = clock;
    return fake;
  }
  ManualClock clock_;
  FakeRunner runner_;
  std::unique_ptr<Engine> engine_;
  Watchdog watchdog_;
};

inline RunnerInfo WithBlocks(uint64_t blocks) {
  RunnerInfo info = Info();
  info.num_blocks = blocks;
  return info;
}

// A runner that answers something else than it was asked, once.
class LyingRunner final : public StepRunner {
 public:
  using Lie = std::function<void(StepOutcome*)>;
  LyingRunner(FakeRunner* truth, uint64_t step, Lie lie)
      : truth_(truth), step_(step), lie_(std::move(lie)) {}
  const RunnerInfo& info() const override { return truth_->info(); }
  absl::Status Admit(const SlotAdmission& a) override { return truth_->Admit(a); }
  absl::Status Submit(const StepInput& input) override { return truth_->Submit(input); }
  std::optional<StepOutcome> Poll() override { return std::nullopt; }
  StepOutcome Wait() override {
    StepOutcome outcome = truth_->Wait();
    if (outcome.step == step_) lie_(&outcome);
    return outcome;
  }
  void Release(uint32_t slot) override { truth_->Release(slot); }

 private:
  FakeRunner* truth_;
  uint64_t step_;
  Lie lie_;
};

}  // namespace eventide
