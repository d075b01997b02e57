// eventide bench decode: what a decode step takes, for batches and contexts, against the time that
// reading its bytes would take at the speed of a plain read measured in the same run.
#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/status.h"
#include "runtime/chrome_trace.h"
#include "tools/bench.h"
#include "tools/bench_steps.h"
#include "tools/flags.h"

namespace eventide {
namespace {

constexpr int kTimelineTasks = 8192;  // of a worker and role; the rings of 132 take 200 MiB

struct DecodeFlags : StepBenchFlags {
  std::vector<int> batches = {1}, contexts = {512};
  int tokens_per_row = 1;
  std::string timeline;
};

struct MeasuredRow {
  StepShape shape;
  StepTimes times;
  DraftStats drafts;
  double layers = 0;  // of early exit: that a token of the last step passed, on average
};

nlohmann::ordered_json RowJson(const DecodeFlags& flags, const ReadCeiling& ceiling,
                               const MeasuredRow& row) {
  const double floor = FloorMs(row.times, ceiling);
  nlohmann::ordered_json json = {
          {"model", flags.engine.model},
          {"batch", row.shape.batch},
          {"context", row.shape.context},
          {"policy", flags.engine.policy},
          {"ms", ToJson(row.times.ms)},
          {"bytes", row.times.bytes},
          {"ceiling_gbps", ceiling.gbps()},
          {"floor_ms", floor},
          {"share", row.times.ms.p50 > 0 ? floor / row.times.ms.p50 : 0.0},
          {"gpu", ceiling.name()},
          {"tokens_per_row", flags.tokens_per_row},
          {"wall_ms", row.times.wall_ms},
          {"submit_us", row.times.submit_us}};
  if (DraftTokens(flags.engine) > 0) json["speculation"] = ToJson(row.drafts);
  if (flags.engine.exit_threshold > 0) {
    json["early_exit"] = {{"threshold", flags.engine.exit_threshold}, {"layers_per_token", row.layers}};
  }
  if (!flags.engine.draft_model.empty()) json["draft_model"] = flags.engine.draft_model;
  return json;
}

// "1 token and 4 drafts".
std::string RowText(const DecodeFlags& flags) {
  const auto counted = [](uint32_t count, const char* what) {
    return absl::StrCat(count, " ", what, count == 1 ? "" : "s");
  };
  const std::string tokens = counted(static_cast<uint32_t>(flags.tokens_per_row), "token");
  const uint32_t drafts = DraftTokens(flags.engine);
  return drafts == 0 ? tokens : absl::StrCat(tokens, " and ", counted(drafts, "draft"));
}

std::string Table(const DecodeFlags& flags, const ReadCeiling& ceiling,
                  const std::vector<MeasuredRow>& rows) {
  std::string text =
      absl::StrFormat("%s on %s, read ceiling %.1f GB/s, policy %s, %s a row\n", flags.engine.model,
                      ceiling.name(), ceiling.gbps(), flags.engine.policy, RowText(flags));
  absl::StrAppendFormat(&text, "%6s %8s %9s %9s %9s %10s %9s %6s %9s %10s\n", "batch", "context",
                        "p5 ms", "median", "p95 ms", "MB", "floor ms", "share", "wall ms",
                        "submit us");
  for (const MeasuredRow& row : rows) {
    const double floor = FloorMs(row.times, ceiling);
    absl::StrAppendFormat(&text, "%6d %8d %9.3f %9.3f %9.3f %10.1f %9.3f %6.2f %9.3f %10.1f\n",
                          row.shape.batch, row.shape.context, row.times.ms.p5, row.times.ms.p50,
                          row.times.ms.p95, static_cast<double>(row.times.bytes) / 1e6, floor,
                          floor / row.times.ms.p50, row.times.wall_ms, row.times.submit_us);
    if (flags.engine.exit_threshold > 0) {
      absl::StrAppendFormat(&text, "       %.2f layers a token\n", row.layers);
    }
  }
  return text;
}

absl::Status CheckFlags(const DecodeFlags& flags) {
  if (flags.tokens_per_row > 1 && DraftTokens(flags.engine) > 0) {
    return UsageError("speculation adds drafts to rows of one token: leave --tokens-per-row out");
  }
  const size_t shapes = flags.batches.size() * flags.contexts.size();
  if (!flags.timeline.empty() && shapes != 1) {
    return UsageError("--timeline takes one --batch and one --context");
  }
  return absl::OkStatus();
}

// The shapes that fit; the others are named in `skipped`.
absl::StatusOr<std::vector<StepShape>> FittingShapes(const DecodeFlags& flags,
                                                     const StepBenchSetup& setup,
                                                     nlohmann::ordered_json* skipped) {
  std::vector<StepShape> shapes;
  const int positions = setup.model.source->config().max_positions;
  for (const int context : flags.contexts) {
    if (context > positions) {
      return UsageError(absl::StrCat("--context ", context, ": the model takes at most ", positions,
                                     " tokens"));
    }
    for (const int batch : flags.batches) {
      const StepShape shape{batch, context};
      if (Fits(setup, shape)) {
        shapes.push_back(shape);
      } else {
        skipped->push_back({{"batch", batch}, {"context", context}});
      }
    }
  }
  if (shapes.empty()) return NoShapeFits(setup, "--batch or --context");
  return shapes;
}

absl::Status WriteTimeline(const DecodeFlags& flags, const ReadCeiling& ceiling, const MeasuredRow& row,
                           StepBench* bench) {
  ASSIGN_OR_RETURN(const Timeline timeline, bench->LastTimeline());
  nlohmann::ordered_json about = RowJson(flags, ceiling, row);
  about.erase("ms");
  about["step_ms"] = row.times.ms.p50;  // recording included
  return WriteChromeTrace(flags.timeline, timeline, bench->runner().executor().program(), about);
}

// Of the last step; 0 without early exit.
absl::StatusOr<double> LayersPerToken(MegakernelRunner& runner) {
  if (!runner.decoder().HasExits()) return 0.0;
  ASSIGN_OR_RETURN(const std::vector<int> tokens, runner.TokensOfLayers());
  const int64_t sum = std::accumulate(tokens.begin(), tokens.end(), int64_t{0});
  return tokens[0] == 0 ? 0.0 : static_cast<double>(sum) / tokens[0];
}

absl::StatusOr<std::vector<MeasuredRow>> MeasureAll(const DecodeFlags& flags,
                                                    const std::vector<StepShape>& shapes,
                                                    StepBench* bench) {
  Progress progress;
  std::vector<MeasuredRow> rows;
  const double per_shape = flags.steps + flags.warmup + std::min(flags.steps, 64);
  for (const StepShape& shape : shapes) {
    const std::string note = absl::StrCat("batch ", shape.batch, ", context ", shape.context);
    const double before = static_cast<double>(rows.size()) * per_shape;
    const auto show = [&](int done) {
      progress.Bar("decode", before + done, per_shape * static_cast<double>(shapes.size()), note);
    };
    ASSIGN_OR_RETURN(const StepTimes times,
                     bench->Measure(shape, {flags.steps, flags.warmup}, show));
    ASSIGN_OR_RETURN(const double layers, LayersPerToken(bench->runner()));
    rows.push_back({shape, times, bench->drafts(), layers});
  }
  return rows;
}

absl::Status RunBenchDecode(const DecodeFlags& flags) {
  RETURN_IF_ERROR(CheckFlags(flags));
  ASSIGN_OR_RETURN(StepBenchSetup setup, OpenStepBench(flags.engine, flags.kv_gib));
  StepBenchOptions& options = setup.options;
  options.backend.timeline_tasks = flags.timeline.empty() ? 0 : kTimelineTasks;
  options.tokens_per_row = flags.tokens_per_row;
  DecoderLimits exits;
  SetExitLimits(flags.engine, setup.model.source->config().layers, &exits);
  options.exit_first = exits.exit_first;
  options.exit_every = exits.exit_every;
  options.exit_threshold = static_cast<float>(flags.engine.exit_threshold);
  nlohmann::ordered_json skipped = nlohmann::ordered_json::array();
  ASSIGN_OR_RETURN(options.shapes, FittingShapes(flags, setup, &skipped));
  ASSIGN_OR_RETURN(const auto bench, LoadStepBench(setup));
  ReadCeiling& ceiling = setup.ceiling;
  ASSIGN_OR_RETURN(const std::vector<MeasuredRow> rows,
                   MeasureAll(flags, options.shapes, bench.get()));
  RETURN_IF_ERROR(ceiling.Measure());
  if (!flags.timeline.empty()) {
    RETURN_IF_ERROR(WriteTimeline(flags, ceiling, rows.back(), bench.get()));
  }
  const uint64_t compilations = bench->runner().compilations();
  if (!flags.engine.json) {
    std::string text = Table(flags, ceiling, rows);
    for (const auto& shape : skipped) {
      absl::StrAppendFormat(&text, "%6d %8d does not fit the KV memory\n",
                            shape["batch"].get<int>(), shape["context"].get<int>());
    }
    absl::StrAppendFormat(&text, "compilations %d (of the model, for all rows together)\n",
                          compilations);
    return PrintText(text);
  }
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const MeasuredRow& row : rows) list.push_back(RowJson(flags, ceiling, row));
  return PrintJson({{"rows", list},
                    {"skipped", skipped},
                    {"compilations", compilations},
                    {"workers", bench->runner().executor().workers()},
                    {"timeline", flags.timeline}});
}

}  // namespace

CommandBody AddBenchDecode(CLI::App* app) {
  auto flags = std::make_shared<DecodeFlags>();
  AddStepBenchFlags(app, flags.get());
  app->add_option("--batch", flags->batches, "Rows of a step, such as 1,8,16")
      ->delimiter(',')
      ->check(WholeNumber(1, 1024));
  app->add_option("--context", flags->contexts, "Tokens in the KV cache of each row, such as 512,4096")
      ->delimiter(',')
      ->check(WholeNumber(1, 1 << 24));
  app->add_option("--tokens-per-row", flags->tokens_per_row,
                  "Query tokens of a row, all with logits: more than one is what speculation runs")
      ->check(WholeNumber(1, 16));
  AddSpeculateFlag(app, &flags->engine);
  AddDraftModelFlags(app, &flags->engine);
  AddExitFlags(app, &flags->engine);
  AddKvFlag(app, flags.get());
  app->add_option("--timeline", flags->timeline,
                  "Records the last step to this file (open it with Perfetto, or with eventide "
                  "inspect --timeline); times then include the recording")
      ->check(NotEmpty());
  app->footer(
      "bytes: weights of all linears and the head once, KV of all rows; floor: bytes at the read\n"
      "ceiling measured in the same run; share: floor / median. ms are of the step on its device.\n"
      "With --exit-threshold bytes and floor stay those of all layers; of experts, those that have tokens.\n"
      "With --speculate every row verifies N random drafts; with --speculate-model those that the model\n"
      "drafts from random KV, its N steps included: what that costs, not what it brings.\n"
      "Examples:\n"
      "  eventide bench decode --model random:llama-3.2-1b --batch 1,8,16 --context 512 --json\n"
      "  eventide bench decode --model random:qwen3-8b --speculate-model random:qwen3-0.6b "
      "--draft-tokens 4");
  return [=] { return RunBenchDecode(*flags); };
}

}  // namespace eventide
