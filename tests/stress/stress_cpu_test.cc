// The stress itself: it finds nothing in what is sound, and planted faults are found, made small,
// and fail again when their line is given back.
#include "stress/stress.h"
#include "tests/support/test.h"

namespace eventide {
namespace {

StressOptions Options(const std::string& device, std::vector<std::string> kinds, int64_t cases) {
  StressOptions options;
  options.device = device;
  options.kinds = std::move(kinds);
  options.cases = cases;
  // What is found and how small it gets must not depend on how busy this machine is: cases and runs are bounds.
  options.seconds = 1200;
  options.minimise.most_seconds = 1200;
  options.seed = 5;
  return options;
}

void CheckSound(const StressOptions& options) {
  const auto result = RunStress(options);
  REQUIRE(result.ok());
  INFO(ToJson(*result).dump(1));
  CHECK(result->failures == 0);
  CHECK(result->cases == options.cases);
  CHECK(result->steps >= static_cast<uint64_t>(options.cases));
  CHECK(result->compilations_after_ready == 0);
}

TEST_CASE("cases of every kind pass on threads and in the simulator") {
  CheckSound(Options("cpu", {}, 24));
  CheckSound(Options("sim", {}, 24));
}

TEST_CASE("a case is a line of text, and what is no case is told by the word") {
  StressCase c("steps");
  c.Set("policy", 1);
  c.Set("dtype", 2);
  c.SetList("prompts", {3, 1, 4});
  CHECK(c.ToText() == "steps dtype=float16 policy=ticket prompts=3,1,4");
  const auto back = StressCase::FromText(c.ToText());
  REQUIRE(back.ok());
  CHECK(*back == c);
  CHECK(back->At("prompts", 2) == 4);
  CHECK(back->At("prompts", 3, -1) == -1);
  for (const char* bad : {"", "graph a", "graph =1", "graph a=x", "graph a=1 a=2"}) {
    INFO(bad);
    CHECK_FALSE(StressCase::FromText(bad).ok());
  }
  CHECK(ReplayStress(StressCase("dance"), Options("cpu", {}, 1)).failures == 1);
  StressOptions unknown = Options("cpu", {"dance"}, 1);
  CHECK_FALSE(RunStress(unknown).ok());
}

TEST_CASE("equal seeds give equal cases") {
  const auto texts = [](uint64_t seed) {
    StressOptions options = Options("cpu", {"graph"}, 6);
    options.seed = seed;
    std::vector<std::string> cases;
    options.progress = [&](const StressProgress& p) { cases.push_back(p.next->ToText()); };
    CHECK(RunStress(options).ok());
    return cases;
  };
  CHECK(texts(3) == texts(3));
  CHECK(texts(3) != texts(4));
}

const StressFailure& Found(const absl::StatusOr<StressResult>& result) {
  REQUIRE(result.ok());
  REQUIRE(result->first.has_value());
  return *result->first;
}

TEST_CASE("a wait that a graph has lost is found, made small and replayed") {
  StressOptions options = Options("sim", {"graph"}, 60);
  options.most_failures = 1;
  // The last grid no longer waits for the one before it.
  options.faults.program = [](Program* program) {
    for (ProgramGrid& grid : program->grids) {
      if (grid.name == "last") grid.waits.clear();
    }
  };
  const auto result = RunStress(options);
  const StressFailure& failure = Found(result);
  INFO(failure.original.ToText() << " became " << failure.smallest.ToText() << ": "
                                 << failure.outcome.failure);
  CHECK(failure.outcome.sort == "wrong values");
  CHECK(failure.outcome.failure.find("tensor state differs from byte") != std::string::npos);
  // One try finds it, at the schedule that is named.
  CHECK(failure.smallest.Get("tries") == 1);
  CHECK(failure.smallest.Get("a") <= failure.original.Get("a"));
  const auto line = StressCase::FromText(failure.smallest.ToText());
  REQUIRE(line.ok());
  CHECK(ReplayStress(*line, options).failures == 1);
  options.faults = {};
  CHECK(ReplayStress(*line, options).failures == 0);
}

TEST_CASE("a logit that is wrong in mixed steps is found, and the case has two sequences at last") {
  StressOptions options = Options("cpu", {"steps"}, 24);
  options.most_failures = 1;
  options.faults.logits = [](int rows, std::vector<float>* logits) {
    if (rows >= 2) logits->front() += 1e-6f;
  };
  const auto result = RunStress(options);
  const StressFailure& failure = Found(result);
  INFO(failure.original.ToText() << " became " << failure.smallest.ToText() << ": "
                                 << failure.outcome.failure);
  CHECK(failure.outcome.sort == "wrong values");
  CHECK(failure.smallest.Count("prompts") == 2);
  CHECK(failure.smallest.At("prompts", 0) == 1);
  CHECK(failure.smallest.Get("workers") == 1);
  CHECK(failure.smallest.Get("layers") == 1);
}

// Loses the token of the last row of every step of three rows or more.
class Forgetful : public StepRunner {
 public:
  explicit Forgetful(StepRunner* runner) : runner_(*runner) {}
  const RunnerInfo& info() const override { return runner_.info(); }
  absl::Status Admit(const SlotAdmission& admission) override { return runner_.Admit(admission); }
  absl::Status Submit(const StepInput& input) override { return runner_.Submit(input); }
  std::optional<StepOutcome> Poll() override {
    auto outcome = runner_.Poll();
    if (outcome) Spoil(&*outcome);
    return outcome;
  }
  StepOutcome Wait() override {
    StepOutcome outcome = runner_.Wait();
    Spoil(&outcome);
    return outcome;
  }
  void Release(uint32_t slot) override { runner_.Release(slot); }

 private:
  static void Spoil(StepOutcome* outcome) {
    if (outcome->rows.size() < 3 || outcome->rows.back().tokens.empty()) return;
    TokenId& token = outcome->rows.back().tokens.front();
    token = token == 0 ? 1 : token - 1;
  }
  StepRunner& runner_;
};

TEST_CASE("a token that is wrong in batches of three is found, and three requests are left") {
  StressOptions options = Options("cpu", {"serve"}, 40);
  options.most_failures = 1;
  options.faults.runner = [](StepRunner* runner) { return std::make_unique<Forgetful>(runner); };
  const auto result = RunStress(options);
  const StressFailure& failure = Found(result);
  INFO(failure.original.ToText() << " became " << failure.smallest.ToText() << ": "
                                 << failure.outcome.failure);
  CHECK(failure.outcome.sort == "wrong values");
  CHECK(failure.smallest.Count("prompts") == 3);
  CHECK(failure.minimise_runs > 3);
}

}  // namespace
}  // namespace eventide
