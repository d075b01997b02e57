// Speculation through the real engine and runner: requests, a runner that forces drafts, and what must
// hold: whatever is drafted, requests get the tokens they get without drafts, and every block comes back.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <random>

#include "models/presets.h"
#include "models/random_weights.h"
#include "serve/clock.h"
#include "serve/engine.h"
#include "serve/megakernel_runner.h"
#include "tests/support/test.h"

namespace eventide {

using Tokens = std::vector<TokenId>;

// A draft model of the target's preset. With all its layers and its seed it is the target itself; with fewer
// layers it is right now and then.
struct DraftModelOptions {
  int layers = 1, max_positions = 4096, vocab = 257;
  uint64_t seed = 11;
};

struct DraftRunnerOptions {
  std::string device = "cpu";
  int window = 0, outputs = 8 * 17, max_model_len = 256;
  int num_blocks = 0;  // of four tokens; 0: for all
  std::optional<DraftModelOptions> draft_model = std::nullopt;
};

inline ModelConfig DraftConfig(const DraftModelOptions& o) {
  ModelConfig config = *PresetConfig("test-llama");
  config.layers = o.layers;
  config.max_positions = o.max_positions;
  config.vocab = o.vocab;
  return config;
}

inline RunnerOptions OptionsFor(const DraftRunnerOptions& o) {
  RunnerOptions options;
  options.backend.device = o.device;
  options.backend.workers = o.device == "cpu" ? 2 : 0;
  if (o.device == "cuda") options.storage = DType::kBF16;
  options.limits.max_rows = 8;
  options.limits.max_outputs = o.outputs;
  options.limits.max_tokens = 160;
  options.limits.max_model_len = o.max_model_len;
  options.limits.block_size = 4;
  options.limits.num_blocks = o.num_blocks > 0 ? o.num_blocks : 8 * o.max_model_len / 4;
  return options;
}

inline std::unique_ptr<MegakernelRunner> MakeDraftRunner(const DraftRunnerOptions& o) {
  ModelConfig config = *PresetConfig("test-llama");
  config.sliding_window = o.window;
  config.windowed_layers.assign(o.window > 0 ? static_cast<size_t>(config.layers) : 0, true);
  const auto source = RandomWeights(config, 11);
  RunnerOptions options = OptionsFor(o);
  std::unique_ptr<WeightSource> draft_model;
  if (o.draft_model) {
    draft_model = RandomWeights(DraftConfig(*o.draft_model), o.draft_model->seed);
    options.draft_model = draft_model.get();
    options.draft_storage = options.storage;
  }
  auto runner = MegakernelRunner::Create(*source, options);
  INFO(runner.status());
  REQUIRE(runner.ok());
  return std::move(*runner);
}

// Greedy and sampled; what they say repeats itself now and then, so that lookups find something.
inline std::vector<Request> SomeRequests(uint32_t max_tokens) {
  std::vector<Request> requests;
  for (int i = 0; i < 9; ++i) {
    Request request;
    request.id = "r" + std::to_string(i);
    for (int t = 0; t < 6 + 13 * (i % 4); ++t) request.prompt.push_back((t % 7 * 31 + i * 7) % 257);
    request.sampling.max_tokens = max_tokens + static_cast<uint32_t>(i);
    request.sampling.temperature = i % 3 == 0 ? 0.0f : 0.3f;
    request.sampling.top_k = i % 3 == 1 ? 8 : 0;
    request.sampling.top_p = i % 3 == 2 ? 0.6f : 1.0f;
    request.sampling.ignore_eos = true;
    requests.push_back(request);
  }
  return requests;
}

struct Served {
  std::map<std::string, Tokens> tokens;
  std::map<std::string, FinishReason> reasons;
  EngineStats stats;
};

// `cancel`: probability that some request is cancelled after a step.
inline Served Serve(StepRunner* runner, const std::vector<Request>& requests, uint32_t drafts,
             double cancel = 0, EngineOptions options = {}) {
  SteadyClock clock;
  options.draft_tokens = drafts;
  auto engine = Engine::Create(runner, &clock, options);
  INFO(engine.status());
  REQUIRE(engine.ok());
  Served served;
  for (const Request& request : requests) {
    const absl::Status added =
        (*engine)->AddRequest(request, [&](const RequestOutput& output) {
          Tokens& tokens = served.tokens[output.id];
          tokens.insert(tokens.end(), output.tokens.begin(), output.tokens.end());
          if (output.finish_reason != FinishReason::kNone) {
            CHECK(served.reasons.emplace(output.id, output.finish_reason).second);
          }
        });
    REQUIRE(added.ok());
  }
  std::mt19937_64 random(5);
  while ((*engine)->HasWork()) {
    REQUIRE((*engine)->Step().ok());
    const absl::Status integrity = (*engine)->CheckIntegrity();
    INFO(integrity);
    REQUIRE(integrity.ok());
    if (std::uniform_real_distribution<>(0, 1)(random) >= cancel) continue;
    const std::string& id = requests[random() % requests.size()].id;
    CHECK((*engine)->Cancel(id).ok() == !served.reasons.contains(id));
  }
  served.stats = (*engine)->stats();
  CHECK(served.stats.kv_blocks_used == 0);
  return served;
}

// Puts drafts of the test's choice into every step: knows what each request will say, and by what has been
// retired what each slot's history is.
class ForcedDrafts final : public StepRunner {
 public:
  // What to draft where `right` (so many tokens) would all be accepted.
  using Choose = std::function<Tokens(Tokens right)>;

  ForcedDrafts(MegakernelRunner* runner, const std::vector<Request>& requests,
               const std::map<std::string, Tokens>& truth, Choose choose)
      : runner_(*runner), choose_(std::move(choose)), info_(runner->info()) {
    info_.max_steps_in_flight = 1;
    for (const Request& request : requests) {
      Tokens all = request.prompt;
      const Tokens& said = truth.at(request.id);
      all.insert(all.end(), said.begin(), said.end());
      texts_.push_back(all);
    }
  }

  const RunnerInfo& info() const override { return info_; }
  absl::Status Admit(const SlotAdmission& a) override {
    histories_[a.slot].assign(a.tokens.begin(), a.tokens.end());
    max_lengths_[a.slot] = a.max_length;
    return runner_.Admit(a);
  }
  absl::Status Submit(const StepInput& input) override {
    for (const Row& row : input.rows) {
      if (row.query_length != kDeviceKnows) continue;
      const Tokens& known = histories_[row.slot];
      Tokens right;
      for (const Tokens& text : texts_) {
        if (text.size() < known.size() || !std::equal(known.begin(), known.end(), text.begin())) {
          continue;
        }
        const size_t room = std::min<size_t>(max_lengths_[row.slot] - 1, text.size());
        right.assign(text.begin() + static_cast<long>(known.size()),
                     text.begin() + static_cast<long>(std::max(room, known.size())));
      }
      right.resize(std::min<size_t>(right.size(), row.draft_length));
      const TokenId last = known.back();
      const auto context = static_cast<uint32_t>(known.size() - 1);
      RETURN_IF_ERROR(runner_.SetContext(row.slot, context, {&last, 1}, choose_(right)));
    }
    return runner_.Submit(input);
  }
  std::optional<StepOutcome> Poll() override { return std::nullopt; }
  StepOutcome Wait() override {
    StepOutcome outcome = runner_.Wait();
    for (const RowResult& row : outcome.rows) {
      Tokens& history = histories_[row.slot];
      history.insert(history.end(), row.tokens.begin(), row.tokens.end());
    }
    return outcome;
  }
  void Release(uint32_t slot) override { runner_.Release(slot); }

 private:
  MegakernelRunner& runner_;
  Choose choose_;
  RunnerInfo info_;
  std::vector<Tokens> texts_;
  std::map<uint32_t, Tokens> histories_;
  std::map<uint32_t, uint32_t> max_lengths_;
};

inline TokenId Wrong(TokenId token) {
  return (token + 1) % 257;
}

// For every draft length.
inline void CheckOwnDrafts(const std::string& device) {
  const std::vector<Request> requests = SomeRequests(40);
  for (const int window : {0, 9}) {
    auto runner = MakeDraftRunner({device, window});
    const Served plain = Serve(runner.get(), requests, 0);
    CHECK(plain.stats.drafts.drafted == 0);
    CHECK(plain.stats.drafts.tokens_per_step() == 1);
    DraftStats adapted_all, constant_all;
    for (uint32_t drafts = 1; drafts <= kMaxDraftTokens; drafts += window > 0 ? 5 : 1) {
      INFO(drafts << " drafts, window " << window);
      const Served served = Serve(runner.get(), requests, drafts);
      CHECK(served.tokens == plain.tokens);
      CHECK(served.stats.drafts.accepted > 0);
      CHECK(served.stats.drafts.accepted < served.stats.drafts.drafted);
      CHECK(served.stats.drafts.tokens_per_step() > 1);
      CHECK(served.stats.steps <= plain.stats.steps);
      EngineOptions adapting;
      adapting.adapt_draft_tokens = true;
      const Served adapted = Serve(runner.get(), requests, drafts, 0, adapting);
      CHECK(adapted.tokens == plain.tokens);
      CHECK(adapted.stats.drafts.accepted > 0);
      CHECK(adapted.stats.drafts.drafted <= served.stats.drafts.drafted);
      if (drafts == 1) continue;
      adapted_all.drafted += adapted.stats.drafts.drafted;
      adapted_all.accepted += adapted.stats.drafts.accepted;
      constant_all.drafted += served.stats.drafts.drafted;
      constant_all.accepted += served.stats.drafts.accepted;
    }
    // Of all lengths together: a single one's may be otherwise, by the luck of its texts.
    CHECK(adapted_all.acceptance() > constant_all.acceptance());
  }
}

// All right, all wrong, wrong at each place, ragged over rows.
inline void CheckForcedDrafts(const std::string& device) {
  const std::vector<Request> requests = SomeRequests(30);
  for (const int window : {0, 8}) {
    auto runner = MakeDraftRunner({device, window});
    const Served plain = Serve(runner.get(), requests, 0);
    const auto forced = [&](const ForcedDrafts::Choose& choose) {
      ForcedDrafts drafts(runner.get(), requests, plain.tokens, choose);
      const Served served = Serve(&drafts, requests, kMaxDraftTokens);
      CHECK(served.tokens == plain.tokens);
      return served.stats.drafts;
    };
    const DraftStats right = forced([](Tokens drafts) { return drafts; });
    CHECK(right.drafted > 200);
    CHECK(right.accepted == right.drafted);
    const DraftStats wrong = forced([](Tokens drafts) {
      for (TokenId& token : drafts) token = Wrong(token);
      return drafts;
    });
    CHECK(wrong.drafted > 200);
    CHECK(wrong.accepted == 0);
    for (size_t at = 0; at < kMaxDraftTokens; at += window > 0 ? 4 : 1) {
      const DraftStats some = forced([&](Tokens drafts) {
        if (at < drafts.size()) drafts[at] = Wrong(drafts[at]);
        return drafts;
      });
      CHECK(some.accepted_at[at] == 0);
      CHECK(some.drafted_at[at] > 0);
      if (at > 0) CHECK(some.accepted_at[at - 1] == some.drafted_at[at - 1]);
    }
    std::mt19937_64 random(3);
    const DraftStats ragged = forced([&](Tokens drafts) {
      drafts.resize(random() % (drafts.size() + 1));
      if (!drafts.empty() && random() % 2) {
        TokenId& token = drafts[random() % drafts.size()];
        token = Wrong(token);
      }
      return drafts;
    });
    CHECK(ragged.accepted > 0);
    CHECK(ragged.accepted < ragged.drafted);
  }
}

// Requests of which some are cancelled while drafts are verified have said what they would have said.
inline void CheckCancelled(MegakernelRunner* runner) {
  const std::vector<Request> requests = SomeRequests(60);
  const Served plain = Serve(runner, requests, 0);
  const Served served = Serve(runner, requests, 7, 0.2);
  CHECK(served.stats.finished_abort > 2);
  for (const auto& [id, tokens] : served.tokens) {
    const Tokens& all = plain.tokens.at(id);
    REQUIRE(tokens.size() <= all.size());
    CHECK(std::equal(tokens.begin(), tokens.end(), all.begin()));
    if (served.reasons.at(id) == FinishReason::kLength) CHECK(tokens == all);
  }
}

}  // namespace eventide
