// eventide bench moe: decode steps of a mixture of experts while the router's choice is replaced by
// drawn or recorded routes: how a step's time depends on where its tokens go.
#include <algorithm>
#include <fstream>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/status.h"
#include "models/routes.h"
#include "tools/bench.h"
#include "tools/bench_steps.h"
#include "tools/flags.h"

namespace eventide {
namespace {

struct MoeFlags : StepBenchFlags {
  std::vector<int> batches = {1};
  std::vector<std::string> policies = {};  // empty: the one of --policy
  std::vector<std::string> routings = {"uniform", "zipf:1", "zipf:1.5", "one-hot"};
  int context = 512;
  std::string record;
};

struct MeasuredRow {
  std::string policy, routing;
  int batch = 1;
  StepTimes times;
  RouteStatistics routes;
  int64_t bytes = 0;
};

nlohmann::ordered_json RowJson(const MoeFlags& flags, const ReadCeiling& ceiling,
                               const MeasuredRow& row) {
  nlohmann::ordered_json histogram = nlohmann::ordered_json::array();
  for (int i = 0; i < kHistogramBuckets; ++i) {
    histogram.push_back({{"tokens_from", HistogramStart(i)},
                         {"experts", row.routes.histogram[static_cast<size_t>(i)]}});
  }
  const double floor = static_cast<double>(row.bytes) / (ceiling.gbps() * 1e6);
  const Percentiles& ms = row.times.ms;
  return {{"model", flags.engine.model},
          {"batch", row.batch},
          {"context", flags.context},
          {"policy", row.policy},
          {"routing", row.routing},
          {"ms", ToJson(ms)},
          {"bytes", row.bytes},
          {"ceiling_gbps", ceiling.gbps()},
          {"floor_ms", floor},
          {"share", ms.p50 > 0 ? floor / ms.p50 : 0.0},
          {"gpu", ceiling.name()},
          {"wall_ms", row.times.wall_ms},
          {"active_experts",
           {{"mean", row.routes.active},
            {"min", row.routes.least_active},
            {"max", row.routes.most_active}}},
          {"busiest_expert", {{"mean", row.routes.busiest}, {"max", row.routes.most_tokens}}},
          {"tokens_per_expert", histogram}};
}

std::string Table(const MoeFlags& flags, const ReadCeiling& ceiling,
                  const std::vector<MeasuredRow>& rows) {
  std::string text =
      absl::StrFormat("%s on %s, context %d, read ceiling %.1f GB/s\n", flags.engine.model,
                      ceiling.name(), flags.context, ceiling.gbps());
  absl::StrAppendFormat(&text, "%6s %-12s %-7s %9s %9s %9s %10s %9s %6s %7s %8s\n", "batch",
                        "routing", "policy", "p5 ms", "median", "p95 ms", "MB", "floor ms", "share",
                        "active", "busiest");
  for (const MeasuredRow& row : rows) {
    const double floor = static_cast<double>(row.bytes) / (ceiling.gbps() * 1e6);
    const Percentiles& ms = row.times.ms;
    absl::StrAppendFormat(
        &text, "%6d %-12s %-7s %9.3f %9.3f %9.3f %10.1f %9.3f %6.2f %7.1f %8.1f\n", row.batch,
        row.routing, row.policy, ms.p5, ms.p50, ms.p95, static_cast<double>(row.bytes) / 1e6, floor,
        floor / ms.p50, row.routes.active, row.routes.busiest);
    absl::StrAppend(&text, "       experts of a layer by their tokens:");
    for (int i = 0; i < kHistogramBuckets; ++i) {
      const double experts = row.routes.histogram[static_cast<size_t>(i)];
      const int first = HistogramStart(i), last = HistogramStart(i + 1) - 1;
      if (experts == 0) continue;
      const std::string span = first == last ? absl::StrCat(first) : absl::StrCat(first, "-", last);
      absl::StrAppendFormat(&text, "  %s: %.1f", span, experts);
    }
    absl::StrAppend(&text, "\n");
  }
  return text;
}

absl::StatusOr<MeasuredRow> MeasureRow(const MoeFlags& flags, const std::string& routing, int batch,
                                       StepBench* bench) {
  const ModelConfig& config = bench->runner().decoder().config;
  ASSIGN_OR_RETURN(const Routes routes, MakeRoutes(routing, config, flags.engine.seed));
  RETURN_IF_ERROR(bench->SetRoutes(routes));
  MeasuredRow row;
  row.routing = routing;
  row.batch = batch;
  ASSIGN_OR_RETURN(row.times, bench->Measure({batch, flags.context}, {flags.steps, flags.warmup}));
  ASSIGN_OR_RETURN(const Routes last, bench->LastRoutes());
  const int experts = config.num_experts;
  const RouteStatistics seen = StatisticsOf(last, experts, last.lines, last.lines);
  // Drawn steps follow one another; of the router's own choice only the last is known.
  row.routes = routing == "router" ? seen : StatisticsOf(routes, experts, batch, kDrawnStride);
  row.bytes = row.times.bytes +
              static_cast<int64_t>(
                  (row.routes.active - seen.active) * config.layers *
                  static_cast<double>(ExpertBytes(config, bench->runner().decoder().storage)));
  if (routing == "router" && !flags.record.empty()) {
    std::ofstream file(flags.record, std::ios::binary | std::ios::app);
    file << RoutesText(last);
    if (!file.flush()) return absl::UnavailableError(absl::StrCat("cannot write ", flags.record));
  }
  return row;
}

absl::Status RunBenchMoe(const MoeFlags& flags) {
  if (!flags.record.empty() &&
      std::find(flags.routings.begin(), flags.routings.end(), "router") == flags.routings.end()) {
    return UsageError("--record writes what the router chose: it needs --routing router");
  }
  ASSIGN_OR_RETURN(StepBenchSetup setup, OpenStepBench(flags.engine, /*kv_gib=*/0));
  // Before the model is loaded: mistakes in their names.
  for (const std::string& routing : flags.routings) {
    // A file's faults are the file's.
    const absl::Status made = MakeRoutes(routing, setup.model.source->config(), 0).status();
    RETURN_IF_ERROR(absl::StartsWith(routing, "recorded:") ? made : AsUsageError(made));
  }
  StepBenchOptions& options = setup.options;
  options.route_draws = kDrawnLines;
  for (const int batch : flags.batches) options.shapes.push_back({batch, flags.context});
  Progress progress;
  const std::vector<std::string> policies =
      flags.policies.empty() ? std::vector<std::string>{flags.engine.policy} : flags.policies;
  const double all =
      static_cast<double>(policies.size() * flags.batches.size() * flags.routings.size());
  std::vector<MeasuredRow> rows;
  for (const std::string& policy : policies) {
    options.backend.policy = policy;
    ASSIGN_OR_RETURN(const auto bench, LoadStepBench(setup));
    for (const int batch : flags.batches) {
      for (const std::string& routing : flags.routings) {
        progress.Bar("bench moe", static_cast<double>(rows.size()), all,
                     absl::StrCat("batch ", batch, ", ", routing, ", ", policy));
        ASSIGN_OR_RETURN(MeasuredRow row, MeasureRow(flags, routing, batch, bench.get()));
        row.policy = policy;
        rows.push_back(std::move(row));
      }
    }
  }
  progress.Clear();
  ReadCeiling& ceiling = setup.ceiling;
  RETURN_IF_ERROR(ceiling.Measure());
  if (!flags.engine.json) return PrintText(Table(flags, ceiling, rows));
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const MeasuredRow& row : rows) list.push_back(RowJson(flags, ceiling, row));
  return PrintJson({{"rows", list}});
}

}  // namespace

CommandBody AddBenchMoe(CLI::App* app) {
  auto flags = std::make_shared<MoeFlags>();
  AddStepBenchFlags(app, flags.get());
  app->add_option(
         "--policies", flags->policies,
         "Several policies one after the other: auto,static,ticket. Each loads the model again")
      ->delimiter(',')
      ->check(CLI::IsMember({"auto", "static", "ticket"}));
  app->add_option("--routing", flags->routings,
                  "Where tokens go: uniform,zipf:S,one-hot,router,recorded:FILE")
      ->delimiter(',')
      ->check(NotEmpty());
  app->add_option("--record", flags->record,
                  "Appends the last step's choice of --routing router to this file")
      ->check(NotEmpty());
  app->add_option("--batch", flags->batches, "Rows of a step, such as 1,8,16")
      ->delimiter(',')
      ->check(WholeNumber(1, 1024));
  app->add_option("--context", flags->context, "Tokens in the KV cache of each row")
      ->check(WholeNumber(1, 1 << 24));
  app->footer(
      "bytes: linears and the head once, experts that have tokens once, KV of all rows; floor: "
      "bytes\n"
      "at the read ceiling measured in the same run. Routes repeat after 16 steps.\n"
      "Example:\n"
      "  eventide bench moe --model random:qwen3-30b-a3b --batch 1,8,64 --routing uniform,one-hot");
  return [=] { return RunBenchMoe(*flags); };
}

}  // namespace eventide
