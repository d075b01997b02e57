// What a start takes: phases from exec to the first token, and whether shapes that nobody has seen
// before cost anything. The numbers of `eventide warmup`.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "core/phases.h"
#include "serve/engine.h"

namespace eventide {

struct PhaseName {
  const char* name;
  const char* what;
};
// In the order in which they are shown; a phase that a device does not have is left out of a
// report.
absl::Span<const PhaseName> StartupPhases();

struct StartupReport {
  std::string model, device;
  std::vector<Phase> phases;  // in the order of StartupPhases
  double total_ms = 0;        // wall, from exec to the first token
  double unaccounted_ms = 0;  // of it, in no phase
  uint64_t compilations = 0;
  uint64_t shape_specialisations = 0;  // kernels that `shapes_tried` further shapes asked for
  uint64_t shapes_tried = 0;
  int64_t cubin_bytes = 0;
  std::string cache;       // "cold" or "cached"
  std::string cache_note;  // why the cubin cache could not be used, if so

  // 0 for a phase that is not there.
  double Ms(const std::string& phase) const;
  // Generating and compiling, or finding it in the cache.
  double CompilationMs() const { return Ms("generate") + Ms("nvrtc"); }
};

// Serves one prompt of `tokens` until its first token: phases first_step (until the first step has
// retired) and first_token. What comes after that token is left to the engine.
absl::Status ServeFirstToken(Engine* engine, int tokens, PhaseLog* phases);

// Steps of shapes that this engine has not run yet, one batch after the other: how many distinct
// ones there were.
absl::StatusOr<uint64_t> TryShapes(Engine* engine, int batches);

// Puts the phases in order and finds what is in none of them.
void FinishReport(const PhaseLog& log, double total_ms, StartupReport* report);

nlohmann::ordered_json ToJson(const StartupReport& report);
absl::StatusOr<StartupReport> StartupFromJson(const nlohmann::json& json);

// The same numbers under the names that `vllm bench startup` gives them, in seconds: averages, the
// single times, and percentiles. `kind` is cold or warm.
nlohmann::ordered_json StartupTimesJson(const std::string& kind,
                                        absl::Span<const StartupReport> reports);

// A table of phases with bars; with two reports, side by side.
std::string StartupTable(absl::Span<const StartupReport> reports);

}  // namespace eventide
