// Everything that the device decides, together in one process: a decoder with early exit, a mixture of experts,
// one of them with early exit and a draft model, and a decoder with a draft model are loaded, then serve random
// requests in random turns. Requests come and go, share prompts, are cancelled and preempted; drafts are verified.
// What each says is compared with what it says alone, on one worker, without drafts, prefix reuse or anybody beside
// it.
#pragma once

#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/status.h"
#include "models/presets.h"
#include "models/random_weights.h"
#include "serve/clock.h"
#include "serve/engine.h"
#include "serve/megakernel_runner.h"

namespace eventide {

struct ServeCampaignOptions {
  uint64_t seed = 1;
  int64_t steps = 300;
  std::string device = "cpu";
  int workers = 3;
  bool plant = false;  // a request's tokens are changed before they are compared
};

struct ServeCampaignResult {
  int64_t steps = 0;
  int64_t full_steps = 0;  // of the model that has experts, early exit and drafts
  int64_t requests = 0, tokens = 0, cancelled = 0, preemptions = 0;
  int64_t drafted = 0, accepted = 0, prefix_hits = 0;
  int64_t token_layers = 0, most_token_layers = 0;  // of early exit: computed, and without it
  int idle_exits = 0;                               // models of which nobody left early
  uint64_t compilations_after_ready = 0, shapes = 0;
  std::string first;  // the first failure; empty: none

  std::string Line() const {
    return absl::StrCat(steps, " steps of ", shapes, " shapes, ", full_steps, " of one model with everything, ",
                        requests, " requests, ", tokens, " tokens, ", cancelled, " cancelled, ", preemptions,
                        " preemptions, ", prefix_hits, " tokens of known prefixes, ", drafted, " drafts, ",
                        accepted, " accepted, early exit computed ", token_layers, " of ", most_token_layers,
                        " layers, ", compilations_after_ready, " compilations, ",
                        first.empty() ? "no failure" : first);
  }
};

class ServeCampaign {
 public:
  explicit ServeCampaign(const ServeCampaignOptions& options) : options_(options), random_(options.seed) {}

  ServeCampaignResult Run() {
    Load("early exit", "test-early-exit", /*exits=*/true, /*draft_layers=*/0);
    Load("experts", "test-moe", false, 0);
    Load("experts with early exit", "test-qwen2-moe", true, 1);
    Load("draft model", "test-llama", false, 2);
    const uint64_t ready = CountBackends().compilations;
    while (result_.first.empty() && result_.steps < options_.steps) Turn();
    for (Model& model : models_) {
      while (result_.first.empty() && model.engine->HasWork()) StepOf(model);
    }
    for (Model& model : models_) Close(model);
    result_.compilations_after_ready = CountBackends().compilations - ready;
    if (result_.compilations_after_ready > 0) Fail("something was compiled while serving");
    return result_;
  }

 private:
  struct Asked {
    Request request;
    std::vector<TokenId> tokens;
    int ends = 0;
    bool compared = false;
    FinishReason reason = FinishReason::kNone;
  };
  struct Model {
    std::string name;
    std::unique_ptr<MegakernelRunner> runner, alone;
    std::unique_ptr<SteadyClock> clock;
    std::unique_ptr<Engine> engine;
    std::map<std::string, Asked> asked;  // live ones and those that ended in this turn
    int number = 0;
    int64_t token_layers = 0, most_token_layers = 0;
  };

  int Below(int n) { return static_cast<int>(random_() % static_cast<uint64_t>(n)); }
  void Fail(const std::string& what) {
    if (result_.first.empty()) result_.first = absl::StrCat("after ", result_.steps, " steps: ", what);
  }

  void Load(const std::string& name, const std::string& preset, bool exits, int draft_layers) {
    Model model;
    model.name = name;
    ModelConfig config = *PresetConfig(preset);
    if (exits) config.layers = std::max(config.layers, 5);
    const auto source = RandomWeights(config, 11);
    RunnerOptions options;
    options.backend.device = options_.device;
    options.backend.workers = options_.workers;
    options.backend.policy = "auto";
    options.storage = options_.device == "cuda" ? DType::kBF16 : DType::kF32;
    options.limits.max_rows = 6;
    options.limits.max_tokens = 48;
    options.limits.max_outputs = 6 * 9;
    options.limits.max_model_len = 96;
    options.limits.block_size = 8;
    options.limits.num_blocks = 13;  // the longest takes 12: somebody is preempted
    if (exits) {
      options.limits.exit_first = 2;
      options.exit_threshold = 0.8f;
    }
    std::unique_ptr<WeightSource> smaller;
    if (draft_layers > 0) {
      ModelConfig draft = config;
      draft.layers = draft_layers;
      smaller = RandomWeights(draft, 11);
      options.draft_model = smaller.get();
      options.draft_storage = options.storage;
    }
    model.runner = Make(*source, options);
    options.draft_model = nullptr;
    options.backend.workers = options_.device == "cuda" ? 8 : 1;
    options.backend.policy = "static";
    model.alone = Make(*source, options);
    if (!result_.first.empty()) return;
    EngineOptions engine;
    engine.draft_tokens = 4;
    engine.max_steps_in_flight = model.runner->info().max_steps_in_flight;
    model.clock = std::make_unique<SteadyClock>();
    auto made = Engine::Create(model.runner.get(), model.clock.get(), engine);
    if (!made.ok()) return Fail(std::string(made.status().message()));
    model.engine = *std::move(made);
    models_.push_back(std::move(model));
  }

  std::unique_ptr<MegakernelRunner> Make(const WeightSource& source, const RunnerOptions& options) {
    auto runner = MegakernelRunner::Create(source, options);
    if (runner.ok()) return *std::move(runner);
    Fail(std::string(runner.status().message()));
    return nullptr;
  }

  void Turn() {
    Model& model = models_[random_() % models_.size()];
    if (Below(2) == 0 || !model.engine->HasWork()) Ask(model);
    if (Below(40) == 0 && !model.asked.empty()) {
      auto which = model.asked.begin();
      std::advance(which, Below(static_cast<int>(model.asked.size())));
      // Whoever has just ended is not found; both ways are right.
      static_cast<void>(model.engine->Cancel(which->first));
    }
    StepOf(model);
  }

  void Ask(Model& model) {
    if (model.asked.size() > 12) return;
    const std::string id = absl::StrCat(model.name, " ", model.number++);
    Asked& asked = model.asked[id];
    Request& request = asked.request;
    request.id = id;
    const int vocab = static_cast<int>(model.runner->info().vocab_size);
    const int length = 1 + Below(Below(4) == 0 ? 35 : 12);
    // Texts that repeat themselves and each other: drafts and prefixes are found.
    const int text = Below(5), period = 3 + Below(6);
    for (int i = 0; i < length; ++i) request.prompt.push_back((i % period * 31 + text * 7) % vocab);
    request.sampling.max_tokens = static_cast<uint32_t>(1 + Below(Below(3) == 0 ? 60 : 15));
    request.sampling.temperature = Below(2) ? 0.0f : 0.5f;
    request.sampling.seed = random_() % 1000;
    request.sampling.ignore_eos = Below(2) == 0;
    const absl::Status added = model.engine->AddRequest(request, [&asked](const RequestOutput& output) {
      asked.tokens.insert(asked.tokens.end(), output.tokens.begin(), output.tokens.end());
      if (output.finish_reason == FinishReason::kNone) return;
      ++asked.ends;
      asked.reason = output.finish_reason;
    });
    if (!added.ok()) Fail(absl::StrCat(id, ": ", std::string(added.message())));
    ++result_.requests;
  }

  void StepOf(Model& model) {
    ++result_.steps;
    result_.full_steps += model.runner->decoder().HasExits() && model.runner->decoder().config.IsMoe();
    if (const absl::Status status = model.engine->Step(); !status.ok()) {
      return Fail(absl::StrCat(model.name, ": ", std::string(status.message())));
    }
    if (const absl::Status status = model.engine->CheckIntegrity(); !status.ok()) {
      return Fail(absl::StrCat(model.name, ": ", std::string(status.message())));
    }
    for (auto it = model.asked.begin(); it != model.asked.end() && result_.first.empty();) {
      if (it->second.ends == 0) {
        ++it;
        continue;
      }
      Compare(model, it->second);
      it = model.asked.erase(it);
    }
  }

  void Compare(Model& model, Asked& asked) {
    if (options_.plant && !asked.tokens.empty()) asked.tokens.back() ^= 1;
    const std::vector<TokenId> alone = Alone(model, asked.request);
    const bool cancelled = asked.reason == FinishReason::kAbort;
    result_.cancelled += cancelled;
    result_.tokens += static_cast<int64_t>(asked.tokens.size());
    if (asked.ends != 1) Fail(absl::StrCat(asked.request.id, " has ", asked.ends, " outcomes"));
    if (asked.reason == FinishReason::kError) Fail(absl::StrCat(asked.request.id, " failed"));
    const bool same = cancelled ? asked.tokens.size() <= alone.size() &&
                                      std::equal(asked.tokens.begin(), asked.tokens.end(), alone.begin())
                                : asked.tokens == alone;
    if (same) return;
    Fail(absl::StrCat(asked.request.id, " said ", absl::StrJoin(asked.tokens, " "), " among others and ",
                      absl::StrJoin(alone, " "), " alone"));
  }

  std::vector<TokenId> Alone(Model& model, Request request) {
    SteadyClock clock;
    EngineOptions options;
    options.prefix_cache.enabled = false;
    options.max_steps_in_flight = 1;
    const auto engine = Engine::Create(model.alone.get(), &clock, options);
    std::vector<TokenId> tokens;
    if (!engine.ok()) return tokens;
    const absl::Status added = (*engine)->AddRequest(std::move(request), [&](const RequestOutput& output) {
      tokens.insert(tokens.end(), output.tokens.begin(), output.tokens.end());
    });
    if (!added.ok()) Fail(std::string(added.message()));
    while ((*engine)->HasWork() && (*engine)->Step().ok()) {
      if (!model.alone->decoder().HasExits()) continue;
      const auto layers = model.alone->TokensOfLayers();
      if (!layers.ok()) continue;
      for (const int count : *layers) model.token_layers += count;
      model.most_token_layers += int64_t{layers->front()} * static_cast<int64_t>(layers->size());
    }
    return tokens;
  }

  void Close(Model& model) {
    const EngineStats stats = model.engine->stats();
    result_.preemptions += static_cast<int64_t>(stats.preemptions);
    result_.drafted += static_cast<int64_t>(stats.drafts.drafted);
    result_.accepted += static_cast<int64_t>(stats.drafts.accepted);
    result_.prefix_hits += static_cast<int64_t>(stats.prefix_hit_tokens);
    result_.shapes += stats.distinct_shapes;
    result_.token_layers += model.token_layers;
    result_.most_token_layers += model.most_token_layers;
    result_.idle_exits += model.alone->decoder().HasExits() && model.token_layers == model.most_token_layers;
    if (stats.kv_blocks_used != 0 || stats.running != 0 || stats.queued != 0) {
      Fail(absl::StrCat(model.name, ": ", stats.kv_blocks_used, " KV blocks, ", stats.running, " running and ",
                        stats.queued, " queued requests are left"));
    }
  }

  ServeCampaignOptions options_;
  std::mt19937_64 random_;
  std::vector<Model> models_;
  ServeCampaignResult result_;
};

}  // namespace eventide
