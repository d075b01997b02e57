#include "tools/bench_steps.h"

#include <algorithm>
#include <thread>

#include "absl/strings/str_cat.h"
#include "core/status.h"
#include "tools/flags.h"

namespace eventide {
namespace {

absl::StatusOr<int64_t> KvBudget(const StepBenchSetup& setup, double kv_gib) {
  if (kv_gib > 0) return static_cast<int64_t>(kv_gib * (1 << 30));
  ASSIGN_OR_RETURN(const int64_t free, setup.ceiling.FreeBytes());
  const ModelConfig& config = setup.model.source->config();
  const DType storage = setup.model.storage;
  const int64_t embedding =
      config.tie_embeddings ? 0 : int64_t{config.vocab} * config.hidden * DTypeSize(storage);
  int64_t model = StepWeightBytes(config, storage) + embedding;
  if (setup.draft_model.source != nullptr) {
    model += StepWeightBytes(setup.draft_model.source->config(), setup.draft_model.storage);
  }
  return std::max<int64_t>(
      0, static_cast<int64_t>(0.9 * static_cast<double>(free - model)) - (int64_t{256} << 20));
}

}  // namespace

void AddStepBenchFlags(CLI::App* app, StepBenchFlags* flags) {
  AddModelFlags(app, &flags->engine);
  AddDeviceFlags(app, &flags->engine);
  app->add_option("--steps", flags->steps, "Steps that are timed, of each shape")->check(WholeNumber(1, 1000000));
  app->add_option("--warmup", flags->warmup, "Steps before them")->check(WholeNumber(0, 1000000));
  app->add_option("--seed", flags->engine.seed, "Of inputs, KV contents, experts' routes")
      ->check(WholeNumber(0, UINT64_MAX));
}

void AddKvFlag(CLI::App* app, StepBenchFlags* flags) {
  app->add_option("--kv-gib", flags->kv_gib,
                  "KV memory at most, in GiB; 0: what is free. Shapes beyond it are left out and listed")
      ->check(RealNumber(0, 1e6));
}

absl::StatusOr<StepBenchSetup> OpenStepBench(const EngineFlags& flags, double kv_gib) {
  if (flags.device == "sim") {
    return UsageError("the simulator has no clock: bench runs on cpu and cuda");
  }
  StepBenchSetup setup;
  ASSIGN_OR_RETURN(setup.model, OpenFlaggedModel(flags));
  ASSIGN_OR_RETURN(setup.draft_model, OpenDraftModel(flags, setup.model));
  ASSIGN_OR_RETURN(setup.ceiling, ReadCeiling::Open(setup.model.device, flags.workers));
  StepBenchOptions& options = setup.options;
  options.backend = {setup.model.device, flags.workers, flags.policy, flags.seed};
  options.backend.time_steps = true;
  options.storage = setup.model.storage;
  options.drafts = static_cast<int>(DraftTokens(flags));
  options.draft_model = setup.draft_model.source.get();
  options.draft_storage = setup.draft_model.storage;
  options.block_size = flags.block_size;
  options.seed = flags.seed;
  options.pack_threads = static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 2u, 64u));
  ASSIGN_OR_RETURN(setup.kv_budget, KvBudget(setup, kv_gib));
  return setup;
}

absl::Status CheckChunkFlags(const StepBenchSetup& setup, int chunk, int context) {
  const int most = setup.model.source->config().max_positions - kChunkRoom;
  if (chunk <= most && context <= most - chunk) return absl::OkStatus();
  return UsageError(absl::StrCat("a chunk of ", chunk, " tokens behind ", context,
                                 ": the model takes at most ", most, " in all"));
}

bool Fits(const StepBenchSetup& setup, const StepShape& shape) {
  return StepKvMemory(setup.model.source->config(), setup.options, shape) <= setup.kv_budget;
}

absl::Status NoShapeFits(const StepBenchSetup& setup, const std::string& smaller) {
  return absl::ResourceExhaustedError(
      absl::StrCat("no shape fits: the KV memory may take ", setup.kv_budget >> 20,
                   " MiB (--kv-gib says otherwise); give smaller ", smaller));
}

absl::StatusOr<std::unique_ptr<StepBench>> LoadStepBench(const StepBenchSetup& setup) {
  Progress progress;
  StepBenchOptions options = setup.options;
  options.pack_progress = [&](int64_t done, int64_t total) {
    progress.Bar("loading weights", static_cast<double>(done), static_cast<double>(total));
  };
  return StepBench::Create(*setup.model.source, options);
}

double FloorMs(const StepTimes& times, const ReadCeiling& ceiling) {
  return static_cast<double>(times.bytes) / (ceiling.gbps() * 1e6);
}

nlohmann::ordered_json ToJson(const Percentiles& ms) {
  return {{"p5", ms.p5}, {"p50", ms.p50}, {"p95", ms.p95}};
}

}  // namespace eventide
