#include "stress/serve_case.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "runtime/sim_executor.h"
#include "serve/engine.h"

namespace eventide {
namespace {

// Calls of Engine::Step in a row that bring nothing: more than any wait for a step in flight takes.
constexpr int kPatience = 100;

// A runner that offers fewer KV blocks than there are: pools of any size without another model.
class SmallPool : public StepRunner {
 public:
  SmallPool(StepRunner* runner, uint64_t blocks) : runner_(*runner), info_(runner->info()) {
    info_.num_blocks = std::min(info_.num_blocks, blocks);
  }
  const RunnerInfo& info() const override { return info_; }
  absl::Status Admit(const SlotAdmission& admission) override { return runner_.Admit(admission); }
  absl::Status Submit(const StepInput& input) override { return runner_.Submit(input); }
  std::optional<StepOutcome> Poll() override { return runner_.Poll(); }
  StepOutcome Wait() override { return runner_.Wait(); }
  void Release(uint32_t slot) override { runner_.Release(slot); }
  uint64_t compilations() const override { return runner_.compilations(); }

 private:
  StepRunner& runner_;
  RunnerInfo info_;
};

// What became of a request.
struct Served {
  std::vector<TokenId> tokens;
  int ends = 0;
  FinishReason reason = FinishReason::kNone;
  absl::Status status;
};

Request RequestOf(const StressCase& c, size_t i, const RunnerInfo& info) {
  Request request;
  request.id = absl::StrCat("request ", i);
  // Some begin with the same tokens, as prompts of one application do.
  const int64_t length = c.At("prompts", i, 1);
  const int64_t shared = i % 3 == 2 ? std::min(length, c.Get("shared")) : 0;
  const int vocab = static_cast<int>(info.vocab_size);
  const uint64_t text = static_cast<uint64_t>(c.Get("text")) * 1000;
  request.prompt = StressTokens(shared, vocab, text + 999);
  const std::vector<TokenId> own = StressTokens(length - shared, vocab, text + i);
  request.prompt.insert(request.prompt.end(), own.begin(), own.end());
  request.sampling.max_tokens = static_cast<uint32_t>(c.At("outs", i, 1));
  request.sampling.temperature = i % 2 == 1 ? 0.7f : 0.0f;
  request.sampling.seed = 40 + i;
  request.sampling.ignore_eos = true;
  request.priority = static_cast<int32_t>(i * static_cast<size_t>(c.Get("priorities")) % 3);
  return request;
}

OutputCallback Record(Served* served) {
  return [served](const RequestOutput& output) {
    served->tokens.insert(served->tokens.end(), output.tokens.begin(), output.tokens.end());
    if (output.finish_reason == FinishReason::kNone) return;
    ++served->ends;
    served->reason = output.finish_reason;
    served->status = output.status;
  };
}

absl::Status CheckFields(const StressCase& c, const RunnerInfo& info) {
  if (c.Count("prompts") < 1) return absl::InvalidArgumentError("prompts: at least one request");
  for (size_t i = 0; i < c.Count("prompts"); ++i) {
    const int64_t prompt = c.At("prompts", i, 1), out = c.At("outs", i, 1);
    if (prompt < 1 || out < 1 || prompt + out > static_cast<int64_t>(info.max_model_len)) {
      return absl::InvalidArgumentError("prompts and outs: at least 1, together at most `len`");
    }
  }
  if (c.Get("pool", 100) < 100) {
    return absl::InvalidArgumentError("pool: at least 100 percent of the longest sequence");
  }
  return absl::OkStatus();
}

// The request alone: nothing shares a step with it and nothing is short.
absl::StatusOr<std::vector<TokenId>> Alone(MegakernelRunner* runner, Request request) {
  SteadyClock clock;
  EngineOptions options;
  options.prefix_cache.enabled = false;
  options.scheduling_policy = SchedulingPolicy::kPriority;
  ASSIGN_OR_RETURN(const auto engine, Engine::Create(runner, &clock, options));
  Served served;
  RETURN_IF_ERROR(engine->AddRequest(std::move(request), Record(&served)));
  while (engine->HasWork()) RETURN_IF_ERROR(engine->Step());
  RETURN_IF_ERROR(served.status);
  return served.tokens;
}

class ServeRun {
 public:
  ServeRun(const StressCase& c, Engine* engine, StressOutcome* outcome)
      : case_(c), engine_(*engine), outcome_(*outcome), served_(c.Count("prompts")) {}

  absl::Status Run() {
    for (size_t i = 0; i < served_.size(); ++i) {
      RETURN_IF_ERROR(
          engine_.AddRequest(RequestOf(case_, i, engine_.runner().info()), Record(&served_[i])));
    }
    int idle = 0;
    for (int64_t step = 0; engine_.HasWork(); ++step) {
      const uint64_t before = Progress();
      for (size_t i = 0; i < served_.size(); ++i) {
        // Whoever has its outcome already is not found; both ways are right.
        if (case_.At("cancels", i, -1) == step) {
          static_cast<void>(engine_.Cancel(absl::StrCat("request ", i)));
        }
      }
      RETURN_IF_ERROR(engine_.Step());
      idle = Progress() == before ? idle + 1 : 0;
      if (idle > kPatience) {
        outcome_.Fail("stuck",
                      absl::StrFormat("no progress in %d calls of the engine with %d "
                                      "requests queued and %d running",
                                      kPatience, engine_.stats().queued, engine_.stats().running));
        engine_.CancelAll();
        break;
      }
    }
    engine_.Drain();
    return engine_.CheckIntegrity();
  }

  const Served& served(size_t i) const { return served_[i]; }

 private:
  uint64_t Progress() const {
    const EngineStats s = engine_.stats();
    return s.computed_tokens + s.steps + s.finished_abort + s.finished_stop + s.finished_length +
           s.preemptions;
  }

  const StressCase& case_;
  Engine& engine_;
  StressOutcome& outcome_;
  std::vector<Served> served_;
};

void CompareServed(const StressCase& c, size_t i, const Served& served,
                   const std::vector<TokenId>& alone, StressOutcome* outcome) {
  const bool cancelled = served.reason == FinishReason::kAbort && c.At("cancels", i, -1) >= 0;
  if (served.ends != 1) {
    return outcome->Fail("outcomes", absl::StrFormat("request %d has %d outcomes", i, served.ends));
  }
  if (!cancelled && served.reason != FinishReason::kLength) {
    return outcome->Fail("error", absl::StrFormat("request %d ended with '%s': %s", i,
                                                  FinishReasonName(served.reason),
                                                  std::string(served.status.message())));
  }
  const bool same = cancelled
                        ? served.tokens.size() <= alone.size() &&
                              std::equal(served.tokens.begin(), served.tokens.end(), alone.begin())
                        : served.tokens == alone;
  if (same) return;
  outcome->Fail("wrong values",
                absl::StrFormat("request %d gave %s among others and %s alone", i,
                                absl::StrJoin(served.tokens, " "), absl::StrJoin(alone, " ")));
}

absl::Status Serve(const StressCase& c, StressContext* context, StressModel* model,
                   StressOutcome* outcome) {
  const RunnerInfo& info = model->tested->info();
  std::vector<std::vector<TokenId>> alone;
  for (size_t i = 0; i < c.Count("prompts"); ++i) {
    ASSIGN_OR_RETURN(std::vector<TokenId> tokens,
                     Alone(model->reference.get(), RequestOf(c, i, info)));
    alone.push_back(std::move(tokens));
  }
  if (auto* sim = dynamic_cast<SimExecutor*>(&model->tested->executor())) {
    sim->SetSeed(static_cast<uint64_t>(c.Get("schedule")));
  }
  const uint64_t longest = (info.max_model_len + info.block_size - 1) / info.block_size;
  SmallPool pool(model->tested.get(),
                 std::max<uint64_t>(1, longest * static_cast<uint64_t>(c.Get("pool", 100)) / 100));
  std::unique_ptr<StepRunner> faulty;
  if (context->faults().runner) faulty = context->faults().runner(&pool);
  SteadyClock clock;
  EngineOptions options;
  options.scheduling_policy =
      c.Get("priorities") != 0 ? SchedulingPolicy::kPriority : SchedulingPolicy::kFcfs;
  // Few bits of hash: lookups collide, and tokens must be compared.
  options.prefix_cache.enabled = c.Get("hash") != 0;
  if (options.prefix_cache.enabled) {
    options.prefix_cache.hash_bits =
        static_cast<uint32_t>(std::clamp<int64_t>(c.Get("hash"), 1, 64));
  }
  options.max_prefill_chunk = static_cast<uint32_t>(c.Get("chunk"));
  options.draft_tokens = static_cast<uint32_t>(c.Get("drafts"));
  options.adapt_draft_tokens = c.Get("adapts") != 0;
  options.max_steps_in_flight =
      std::min(static_cast<uint32_t>(c.Get("flight", 1)), info.max_steps_in_flight);
  ASSIGN_OR_RETURN(const auto engine,
                   Engine::Create(faulty != nullptr ? faulty.get() : &pool, &clock, options));
  ServeRun run(c, engine.get(), outcome);
  const absl::Status status = run.Run();
  outcome->steps = engine->stats().steps;
  outcome->shapes = engine->stats().distinct_shapes;
  RETURN_IF_ERROR(status);
  for (size_t i = 0; i < alone.size(); ++i) CompareServed(c, i, run.served(i), alone[i], outcome);
  const EngineStats stats = engine->stats();
  if (stats.kv_blocks_used != 0 || stats.queued != 0 || stats.running != 0) {
    outcome->Fail("leak",
                  absl::StrFormat("%d KV blocks, %d queued and %d running requests are left",
                                  stats.kv_blocks_used, stats.queued, stats.running));
  }
  return absl::OkStatus();
}

}  // namespace

void RandomServeCase(StressRandom* random, StressCase* c) {
  const int64_t len = c->Get("len");
  std::vector<int64_t> prompts, outs, cancels;
  for (int64_t i = random->Between(1, 10); i > 0; --i) {
    const int64_t out = random->Between(1, std::min<int64_t>(12, len - 1));
    outs.push_back(out);
    prompts.push_back(
        random->Between(1, random->Chance(40) ? len - out : std::min<int64_t>(9, len - out)));
    cancels.push_back(random->Chance(25) ? random->Below(12) : -1);
  }
  c->SetList("prompts", std::move(prompts));
  c->SetList("outs", std::move(outs));
  c->SetList("cancels", std::move(cancels));
  c->Set("pool", random->OneOf({100, 120, 250, 400}));
  c->Set("chunk", random->OneOf({0, 1, 5, 16}));
  c->Set("flight", random->Between(1, 2));
  c->Set("priorities", random->Below(3));
  c->Set("hash", random->OneOf({0, 1, 8, 64}));
  c->Set("shared", random->OneOf({0, 5, 16, 33}));
  c->Set("text", random->Below(1000));
  c->Set("drafts", random->OneOf({0, 1, 2, 5, 16}));
  c->Set("adapts", random->OneOf({0, 1}));
  if (random->Chance(35)) {
    // Deep enough to leave; from nearly everybody to nearly nobody does.
    c->Set("layers", random->Between(2, 6));
    c->Set("exit_first", random->Between(1, c->Get("layers") - 1));
    c->Set("exit_every", random->Between(1, std::min<int64_t>(3, c->Get("layers"))));
    c->Set("exit_percent", random->OneOf({-100, 40, 60, 70, 75, 80, 90}));
    c->Set("draft", std::min(c->Get("draft"), c->Get("layers")));
  }
  if (c->Has("pages")) c->Set("schedule", random->Below(1'000'000'000));
}

StressOutcome RunServeCase(const StressCase& c, StressContext* context) {
  const absl::StatusOr<StressModel*> made = context->Model(c);
  if (!made.ok()) return StressOutcome::Invalid(std::string(made.status().message()));
  if (const absl::Status status = CheckFields(c, (*made)->tested->info()); !status.ok()) {
    return StressOutcome::Invalid(std::string(status.message()));
  }
  const uint64_t compilations = CountBackends().compilations;
  StressOutcome outcome;
  if (const absl::Status status = Serve(c, context, *made, &outcome); !status.ok()) {
    outcome.Fail(absl::IsDeadlineExceeded(status) ? "stuck" : "error",
                 std::string(status.message()));
  }
  outcome.compilations_after_ready = CountBackends().compilations - compilations;
  return outcome;
}

}  // namespace eventide
