#include "stress/stress.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/status.h"
#include "stress/graph_case.h"
#include "stress/serve_case.h"
#include "stress/steps_case.h"

namespace eventide {
namespace {

using Clock = std::chrono::steady_clock;

constexpr StressKind kKinds[] = {
    {"graph", "random graphs of checksums: schedules, empty grids, extents that a device decides"},
    {"steps", "decoders of odd shapes: batches, chunks, workers, poison, against float64 too"},
    {"serve", "the engine: short KV pools, preemption, cancels, two steps in flight"},
};

// Cases in a row that share a model.
constexpr int kCasesPerModel = 8;

double Since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

StressOutcome RunCase(const StressCase& c, StressContext* context) {
  if (c.kind() == "graph") return RunGraphCase(c, context);
  if (c.kind() == "steps") return RunStepsCase(c, context);
  if (c.kind() == "serve") return RunServeCase(c, context);
  return StressOutcome::Invalid(absl::StrCat("'", c.kind(), "' is no kind of case"));
}

// Case `index` of a run: a function of the seed and the index alone.
StressCase CaseOf(const StressOptions& options, const std::vector<std::string>& kinds,
                  uint64_t index) {
  StressRandom random(options.seed * 0x100000001b3ull + index);
  const std::string& kind = kinds[index / kCasesPerModel % kinds.size()];
  if (kind == "graph") return RandomGraphCase(&random, options.device);
  StressCase c(kind);
  StressRandom model(options.seed * 0x100000001b3ull + (index / kCasesPerModel + 1) * 0x10001);
  RandomModel(&model, options.device, &c);
  if (kind == "steps") {
    RandomStepsCase(&random, &c);
  } else {
    RandomServeCase(&random, &c);
  }
  return c;
}

// What a case that was made up here must not be: refused.
StressOutcome RunGenerated(const StressCase& c, StressContext* context) {
  StressOutcome outcome = RunCase(c, context);
  if (outcome.verdict == StressOutcome::Verdict::kInvalid) {
    outcome.verdict = StressOutcome::Verdict::kFailed;
    outcome.sort = "refused";
  }
  return outcome;
}

void Count(const StressOutcome& outcome, StressResult* result) {
  ++result->cases;
  result->steps += outcome.steps;
  result->distinct_shapes += outcome.shapes;
  result->compilations_after_ready += outcome.compilations_after_ready;
  result->failures += outcome.verdict != StressOutcome::Verdict::kPassed;
}

StressFailure Explain(const StressCase& c, const StressOutcome& outcome, StressContext* context,
                      const MinimiseOptions& options) {
  if (outcome.sort == "refused") return {c, c, outcome, 0};
  Minimised minimised = Minimise(
      c, outcome, [&](const StressCase& smaller) { return RunCase(smaller, context); }, options);
  return {c, std::move(minimised.smallest), std::move(minimised.outcome), minimised.runs};
}

absl::StatusOr<std::vector<std::string>> ChosenKinds(const StressOptions& options) {
  for (const std::string& kind : options.kinds) RETURN_IF_ERROR(KnownStressKind(kind));
  if (!options.kinds.empty()) return options.kinds;
  std::vector<std::string> known;
  for (const StressKind& kind : kKinds) known.push_back(kind.name);
  return known;
}

}  // namespace

absl::Span<const StressKind> StressKinds() {
  return kKinds;
}

absl::Status KnownStressKind(const std::string& kind) {
  std::vector<std::string> known;
  for (const StressKind& each : kKinds) known.push_back(each.name);
  if (std::find(known.begin(), known.end(), kind) != known.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("'", kind, "' is no kind of case; there are ", absl::StrJoin(known, ", ")));
}

absl::StatusOr<StressResult> RunStress(const StressOptions& options) {
  ASSIGN_OR_RETURN(const std::vector<std::string> kinds, ChosenKinds(options));
  StressContext context(options.device, options.faults);
  StressResult result;
  result.device = options.device;
  result.seed = options.seed;
  const Clock::time_point start = Clock::now();
  while ((options.cases == 0 || result.cases < options.cases) && Since(start) < options.seconds &&
         result.failures < options.most_failures && !(options.stop && options.stop())) {
    const StressCase c = CaseOf(options, kinds, static_cast<uint64_t>(result.cases));
    if (options.progress) options.progress({result.cases, result.failures, Since(start), &c});
    const StressOutcome outcome = RunGenerated(c, &context);
    Count(outcome, &result);
    if (outcome.verdict == StressOutcome::Verdict::kFailed && !result.first) {
      result.first = Explain(c, outcome, &context, options.minimise);
    }
  }
  result.seconds = Since(start);
  return result;
}

StressResult ReplayStress(const StressCase& c, const StressOptions& options) {
  StressContext context(options.device, options.faults);
  StressResult result;
  result.device = options.device;
  const Clock::time_point start = Clock::now();
  if (options.progress) options.progress({0, 0, 0, &c});
  StressOutcome outcome = RunGenerated(c, &context);
  Count(outcome, &result);
  if (outcome.verdict == StressOutcome::Verdict::kFailed)
    result.first = {c, c, std::move(outcome), 0};
  result.seconds = Since(start);
  return result;
}

nlohmann::ordered_json ToJson(const StressResult& r) {
  nlohmann::ordered_json json = {{"cases", r.cases},
                                 {"failures", r.failures},
                                 {"distinct_shapes", r.distinct_shapes},
                                 {"compilations_after_ready", r.compilations_after_ready},
                                 {"seed", r.seed},
                                 {"backend", r.device},
                                 {"steps", r.steps},
                                 {"seconds", r.seconds}};
  if (r.first) {
    json["first_failure"] = {{"sort", r.first->outcome.sort},
                             {"what", r.first->outcome.failure},
                             {"replay", r.first->smallest.ToText()},
                             {"found_as", r.first->original.ToText()}};
  }
  return json;
}

}  // namespace eventide
