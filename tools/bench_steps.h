// What the benchmarks of whole steps share: the model and its device, the read ceiling, the memory
// that KV may take, the figures of a row.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>

#include "serve/step_bench.h"
#include "tools/engine_flags.h"
#include "tools/read_ceiling.h"

namespace eventide {

struct StepBenchFlags {
  EngineFlags engine;
  int steps = 100, warmup = 10;
  double kv_gib = 0;
};
// --model, --dtype, --json, --device, --workers, --policy, --block-size, --steps, --warmup, --seed.
void AddStepBenchFlags(CLI::App* app, StepBenchFlags* flags);
// --kv-gib.
void AddKvFlag(CLI::App* app, StepBenchFlags* flags);

struct StepBenchSetup {
  OpenedModel model, draft_model;
  ReadCeiling ceiling;
  StepBenchOptions options;  // shapes and what is one command's alone are left to it
  int64_t kv_budget = 0;     // bytes that one shape's KV may take
};

// Refuses the simulator, which has no clock. `kv_gib` 0: what the model, packing and activations
// leave.
absl::StatusOr<StepBenchSetup> OpenStepBench(const EngineFlags& flags, double kv_gib);

// A chunk that the model has no positions for is bad usage.
absl::Status CheckChunkFlags(const StepBenchSetup& setup, int chunk, int context);

// Whether the KV of a shape fits.
bool Fits(const StepBenchSetup& setup, const StepShape& shape);
absl::Status NoShapeFits(const StepBenchSetup& setup, const std::string& smaller);

// Loads the model, with a progress bar.
absl::StatusOr<std::unique_ptr<StepBench>> LoadStepBench(const StepBenchSetup& setup);

// Milliseconds that reading the step's bytes takes at the ceiling.
double FloorMs(const StepTimes& times, const ReadCeiling& ceiling);
nlohmann::ordered_json ToJson(const Percentiles& ms);

}  // namespace eventide
