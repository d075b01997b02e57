// A stress run: random cases, each against a reference, until the time or their number is up; the
// first failure is made as small as it gets. What a user runs on a new card or driver to trust it.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "stress/context.h"
#include "stress/minimise.h"

namespace eventide {

struct StressProgress {
  int64_t cases = 0, failures = 0;
  double seconds = 0;
  const StressCase* next = nullptr;  // about to run
};

struct StressOptions {
  std::string device = "cpu";
  double seconds = 10;             // no case begins afterwards
  int64_t cases = 0;               // 0: as many as the time allows
  uint64_t seed = 0;               // equal seeds give equal cases
  std::vector<std::string> kinds;  // of StressKinds; empty: all
  int most_failures = 20;          // then it ends
  MinimiseOptions minimise;
  StressFaults faults;
  std::function<void(const StressProgress&)> progress;  // before each case
  std::function<bool()> stop;                           // asked before each case; may be absent
};

struct StressFailure {
  StressCase original, smallest;
  StressOutcome outcome;  // of the smallest
  int minimise_runs = 0;
};

struct StressResult {
  std::string device;
  uint64_t seed = 0;
  int64_t cases = 0, failures = 0;
  uint64_t steps = 0;
  uint64_t distinct_shapes = 0;  // distinct within a case, added up
  uint64_t compilations_after_ready = 0;
  double seconds = 0;
  std::optional<StressFailure> first;
};

// graph, steps, serve: names and what they try.
struct StressKind {
  const char* name;
  const char* what;
};
absl::Span<const StressKind> StressKinds();
// An error that names the kinds there are, for any other.
absl::Status KnownStressKind(const std::string& kind);

// Errors are of the options only.
absl::StatusOr<StressResult> RunStress(const StressOptions& options);

// One case; `smallest` of the result is the case itself.
StressResult ReplayStress(const StressCase& c, const StressOptions& options);

nlohmann::ordered_json ToJson(const StressResult& result);

}  // namespace eventide
