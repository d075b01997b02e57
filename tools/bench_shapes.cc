// eventide bench shapes: the same program, loaded once, over every batch of a range, every chunk of
// a range, and decode rows beside a chunk: where step times leave the line through their
// neighbours, and what a chunk costs those who decode beside it.
#include <algorithm>
#include <chrono>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "core/status.h"
#include "serve/shape_curve.h"
#include "tools/bench.h"
#include "tools/bench_steps.h"
#include "tools/flags.h"

namespace eventide {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kAgain = 4;  // times as many steps for points that look like cliffs

struct ShapesFlags : StepBenchFlags {
  ShapesFlags() { steps = 5, warmup = 1; }

  std::vector<std::string> batches, chunks, mixed;
  int context = 512, chunk_context = 0, mixed_chunk = 512;
  double limit_percent = 5, seconds = 0;
};

struct Point {
  int size = 0;
  StepShape shape;
  Percentiles ms;
  bool again = false;  // measured a second time, which counts
};

// Over batches or over chunks.
struct Sweep {
  const char* axis;  // also the name of the size in a point
  std::vector<Point> points;
  std::vector<int> left_out;  // for want of memory or time
  CurveReport report;
};

struct MixedPoint {
  StepShape shape;
  double chunk_ms = 0, decode_ms = 0, both_ms = 0;
};

// Measures until the time is over, and shows how far it is.
class Measurer {
 public:
  Measurer(const ShapesFlags& flags, StepBench* bench, size_t shapes)
      : flags_(flags), bench_(bench), shapes_(static_cast<double>(shapes)) {}

  bool TimeIsOver() const { return flags_.seconds > 0 && Seconds() > flags_.seconds; }
  double Seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  absl::StatusOr<Percentiles> Measure(const StepShape& shape, int times = 1) {
    progress_.Bar("shapes", done_, std::max(shapes_, done_ + 1),
                  absl::StrCat("batch ", shape.batch, ", chunk ", shape.chunk));
    ++done_;
    const StepCounts counts{flags_.steps * times, flags_.warmup, /*wall=*/false};
    ASSIGN_OR_RETURN(const StepTimes measured, bench_->Measure(shape, counts));
    return measured.ms;
  }

 private:
  const ShapesFlags& flags_;
  StepBench* bench_;
  double shapes_, done_ = 0;
  Progress progress_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

void Report(const ShapesFlags& flags, Sweep* sweep) {
  std::vector<CurvePoint> curve;
  for (const Point& point : sweep->points) curve.push_back({point.size, point.ms.p50});
  sweep->report = ReportCurve(curve, flags.limit_percent / 100);
}

// Few steps make few medians: what looks like a cliff is measured again, longer.
absl::Status RunSweep(const ShapesFlags& flags, Measurer* measurer, Sweep* sweep) {
  std::vector<Point> points = std::move(sweep->points);
  sweep->points.clear();
  for (Point& point : points) {
    if (measurer->TimeIsOver()) {
      sweep->left_out.push_back(point.size);
      continue;
    }
    ASSIGN_OR_RETURN(point.ms, measurer->Measure(point.shape));
    sweep->points.push_back(point);
  }
  Report(flags, sweep);
  for (Point& point : sweep->points) {
    const std::vector<int>& cliffs = sweep->report.cliffs;
    if (measurer->TimeIsOver() || !std::binary_search(cliffs.begin(), cliffs.end(), point.size)) {
      continue;
    }
    ASSIGN_OR_RETURN(point.ms, measurer->Measure(point.shape, kAgain));
    point.again = true;
  }
  Report(flags, sweep);
  std::sort(sweep->left_out.begin(), sweep->left_out.end());
  return absl::OkStatus();
}

// How long a decode row waits for its token when its step has a chunk beside it.
absl::StatusOr<MixedPoint> MeasureMixed(const StepShape& shape, Measurer* measurer) {
  MixedPoint point{shape};
  StepShape chunk = shape, decode = shape;
  chunk.batch = 0;
  decode.chunk = 0;
  // A few shapes only: as long as for what looks like a cliff.
  ASSIGN_OR_RETURN(const Percentiles alone, measurer->Measure(chunk, kAgain));
  ASSIGN_OR_RETURN(const Percentiles rows, measurer->Measure(decode, kAgain));
  ASSIGN_OR_RETURN(const Percentiles both, measurer->Measure(shape, kAgain));
  point.chunk_ms = alone.p50;
  point.decode_ms = rows.p50;
  point.both_ms = both.p50;
  return point;
}

Json SweepJson(const Sweep& sweep) {
  Json points = Json::array();
  for (size_t i = 0; i < sweep.points.size(); ++i) {
    const Point& point = sweep.points[i];
    const std::optional<double>& deviation = sweep.report.deviation[i];
    Json json = {{sweep.axis, point.size},
                 {"ms", ToJson(point.ms)},
                 {"deviation", deviation ? Json(*deviation) : Json()}};
    if (point.again) json["again"] = true;
    points.push_back(std::move(json));
  }
  const auto step = [](const CurveStep& s) {
    return Json{
        {"after", s.size}, {"tile", s.tile}, {"ms", {s.ms_before, s.ms_after}}, {"rise", s.rise()}};
  };
  Json tile_steps = Json::array(), rises = Json::array();
  for (const CurveStep& s : sweep.report.tile_steps) tile_steps.push_back(step(s));
  for (const TileRises& r : sweep.report.rises) {
    if (r.steps == 0) continue;
    rises.push_back(
        {{"tile", r.tile}, {"steps", r.steps}, {"mean", r.mean}, {"most", step(r.most)}});
  }
  double worst = 0;
  for (const auto& deviation : sweep.report.deviation) {
    if (deviation) worst = std::max(worst, std::abs(*deviation));
  }
  return {{"points", points},
          {"left_out", sweep.left_out},
          {"limit", sweep.report.limit},
          {"worst_deviation", worst},
          {"worst_at", sweep.report.worst ? Json(sweep.report.worst->size) : Json()},
          {"beyond", sweep.report.beyond},
          {"tile_steps", tile_steps},
          {"cliffs", sweep.report.cliffs},
          {"rises", rises}};
}

Json MixedJson(const MixedPoint& p) {
  return {{"batch", p.shape.batch},
          {"context", p.shape.context},
          {"chunk", p.shape.chunk},
          {"chunk_context", p.shape.chunk_context},
          {"chunk_ms", p.chunk_ms},
          {"decode_ms", p.decode_ms},
          {"both_ms", p.both_ms},
          {"over_chunk", p.both_ms / p.chunk_ms},
          {"over_sum", p.both_ms / (p.chunk_ms + p.decode_ms)}};
}

std::string SweepText(const Sweep& sweep) {
  const CurveReport& report = sweep.report;
  std::string text = absl::StrFormat("%s: %d measured", sweep.axis, sweep.points.size());
  if (!sweep.left_out.empty()) {
    absl::StrAppendFormat(&text, ", %d left out for want of memory or time", sweep.left_out.size());
  }
  absl::StrAppend(&text, "\n ");
  for (size_t i = 0; i < sweep.points.size(); ++i) {
    const int size = sweep.points[i].size;
    const bool power = (size & (size - 1)) == 0;
    if (!power && i + 1 != sweep.points.size()) continue;
    absl::StrAppendFormat(&text, " %d: %.3f ms", size, sweep.points[i].ms.p50);
  }
  const double limit = 100 * report.limit;
  absl::StrAppendFormat(&text, "\n  beyond %.3g %% of the line through its neighbours: %d\n", limit,
                        report.beyond.size());
  for (const CurveStep& step : report.tile_steps) {
    absl::StrAppendFormat(&text, "    behind %d (tiles of %d): %.3f to %.3f ms, %+.1f %%\n",
                          step.size, step.tile, step.ms_before, step.ms_after, 100 * step.rise());
  }
  absl::StrAppend(&text, "    at no tile's end: ",
                  report.cliffs.empty() ? "none" : absl::StrJoin(report.cliffs, ", "), "\n");
  for (const TileRises& rises : report.rises) {
    if (rises.steps == 0) continue;
    absl::StrAppend(&text,
                    rises.tile > 0 ? absl::StrFormat("  behind multiples of %d", rises.tile)
                                   : std::string("  behind others"),
                    absl::StrFormat(": %+.2f %% each, at most %+.1f %% (%d)\n", 100 * rises.mean,
                                    100 * rises.most.rise(), rises.most.size));
  }
  return text;
}

std::string MixedText(const std::vector<MixedPoint>& mixed) {
  std::string text = absl::StrFormat("%6s %8s %6s %10s %10s %10s %11s\n", "batch", "context",
                                     "chunk", "chunk ms", "decode ms", "both ms", "both/chunk");
  for (const MixedPoint& p : mixed) {
    absl::StrAppendFormat(&text, "%6d %8d %6d %10.3f %10.3f %10.3f %11.3f\n", p.shape.batch,
                          p.shape.context, p.shape.chunk, p.chunk_ms, p.decode_ms, p.both_ms,
                          p.both_ms / p.chunk_ms);
  }
  return text;
}

struct Plan {
  std::vector<StepShape> mixed;
  std::vector<int> mixed_left_out;  // their rows; for want of memory or time
  Sweep batch{"batch", {}, {}, {}}, chunk{"chunk", {}, {}, {}};
};

absl::Status CheckContexts(const ShapesFlags& flags, const StepBenchSetup& setup,
                           const Plan& plan) {
  const int positions = setup.model.source->config().max_positions;
  const bool decodes = !plan.mixed.empty() || !plan.batch.points.empty();
  if (decodes && flags.context > positions) {
    return UsageError(absl::StrCat("--context ", flags.context, ": the model takes at most ",
                                   positions, " tokens"));
  }
  int longest = plan.mixed.empty() ? 0 : flags.mixed_chunk;
  for (const Point& point : plan.chunk.points) longest = std::max(longest, point.size);
  return longest == 0 ? absl::OkStatus() : CheckChunkFlags(setup, longest, flags.chunk_context);
}

// What the flags ask for and what fits; the options' shapes are all of it.
absl::StatusOr<Plan> MakePlan(const ShapesFlags& flags, StepBenchSetup* setup) {
  const bool all = flags.batches.empty() && flags.chunks.empty() && flags.mixed.empty();
  const auto sizes = [&](const std::vector<std::string>& ranges, const char* otherwise) {
    return ExpandRanges(all ? std::vector<std::string>{otherwise} : ranges);
  };
  Plan plan;
  for (const int batch : all ? std::vector<int>{1, 8, 64} : ExpandRanges(flags.mixed)) {
    plan.mixed.push_back({batch, flags.context, flags.mixed_chunk, flags.chunk_context});
  }
  for (const int batch : sizes(flags.batches, "1..256")) {
    plan.batch.points.push_back({batch, {batch, flags.context}, {}});
  }
  for (const int chunk : sizes(flags.chunks, "1..600")) {
    plan.chunk.points.push_back({chunk, {0, flags.context, chunk, flags.chunk_context}, {}});
  }
  RETURN_IF_ERROR(CheckContexts(flags, *setup, plan));
  std::vector<StepShape>& shapes = setup->options.shapes;
  std::erase_if(plan.mixed, [&](const StepShape& shape) {
    const bool fits = Fits(*setup, shape);
    if (!fits) plan.mixed_left_out.push_back(shape.batch);
    return !fits;
  });
  for (const StepShape& shape : plan.mixed) shapes.push_back(shape);
  for (Sweep* sweep : {&plan.batch, &plan.chunk}) {
    std::erase_if(sweep->points, [&](const Point& point) {
      const bool fits = Fits(*setup, point.shape);
      if (!fits) sweep->left_out.push_back(point.size);
      return !fits;
    });
    for (const Point& point : sweep->points) shapes.push_back(point.shape);
  }
  if (shapes.empty()) return NoShapeFits(*setup, "--batch, --chunk or contexts");
  return plan;
}

absl::Status RunBenchShapes(const ShapesFlags& flags) {
  ASSIGN_OR_RETURN(StepBenchSetup setup, OpenStepBench(flags.engine, flags.kv_gib));
  ASSIGN_OR_RETURN(Plan plan, MakePlan(flags, &setup));
  ASSIGN_OR_RETURN(const auto bench, LoadStepBench(setup));
  const uint64_t compilations = bench->runner().compilations();
  std::vector<MixedPoint> mixed;
  double seconds = 0;
  {
    Measurer measurer(flags, bench.get(), setup.options.shapes.size());
    for (const StepShape& shape : plan.mixed) {
      if (measurer.TimeIsOver()) {
        plan.mixed_left_out.push_back(shape.batch);
        continue;
      }
      ASSIGN_OR_RETURN(const MixedPoint point, MeasureMixed(shape, &measurer));
      mixed.push_back(point);
    }
    std::sort(plan.mixed_left_out.begin(), plan.mixed_left_out.end());
    RETURN_IF_ERROR(RunSweep(flags, &measurer, &plan.batch));
    RETURN_IF_ERROR(RunSweep(flags, &measurer, &plan.chunk));
    seconds = measurer.Seconds();
  }
  const uint64_t later = bench->runner().compilations() - compilations;
  if (!flags.engine.json) {
    std::string text = absl::StrFormat("%s on %s, policy %s\n", flags.engine.model,
                                       setup.ceiling.name(), flags.engine.policy);
    for (const Sweep* sweep : {&plan.batch, &plan.chunk}) {
      if (!sweep->points.empty() || !sweep->left_out.empty()) absl::StrAppend(&text, SweepText(*sweep));
    }
    if (!mixed.empty()) absl::StrAppend(&text, MixedText(mixed));
    if (!plan.mixed_left_out.empty()) {
      absl::StrAppend(&text, "mixed: left out for want of memory or time: ",
                      absl::StrJoin(plan.mixed_left_out, ", "), "\n");
    }
    absl::StrAppendFormat(&text, "compilations %d, %d after the model was ready; %.1f s\n",
                          compilations, later, seconds);
    return PrintText(text);
  }
  Json list = Json::array();
  for (const MixedPoint& point : mixed) list.push_back(MixedJson(point));
  return PrintJson({{"model", flags.engine.model},
                    {"gpu", setup.ceiling.name()},
                    {"policy", flags.engine.policy},
                    {"context", flags.context},
                    {"chunk_context", flags.chunk_context},
                    {"steps", flags.steps},
                    {"warmup", flags.warmup},
                    {"compilations", compilations},
                    {"compilations_after_ready", later},
                    {"seconds", seconds},
                    {"batch", SweepJson(plan.batch)},
                    {"chunk", SweepJson(plan.chunk)},
                    {"mixed", list},
                    {"mixed_left_out", plan.mixed_left_out}});
}

}  // namespace

CommandBody AddBenchShapes(CLI::App* app) {
  auto flags = std::make_shared<ShapesFlags>();
  AddStepBenchFlags(app, flags.get());
  app->add_option("--batch", flags->batches, "Decode rows of a step, such as 1..256")
      ->delimiter(',')
      ->check(WholeNumbers(1, 1024));
  app->add_option("--chunk", flags->chunks, "Prompt tokens of one row, alone in its step, such as 1..600")
      ->delimiter(',')
      ->check(WholeNumbers(1, 1 << 16));
  app->add_option("--mixed", flags->mixed, "Decode rows beside a chunk, such as 1,8,64")
      ->delimiter(',')
      ->check(WholeNumbers(1, 1023));
  app->add_option("--mixed-chunk", flags->mixed_chunk, "Prompt tokens of that chunk")
      ->check(WholeNumber(1, 1 << 20));
  app->add_option("--context", flags->context, "Tokens in the KV cache of each decode row")
      ->check(WholeNumber(1, 1 << 24));
  app->add_option("--chunk-context", flags->chunk_context, "Tokens in the KV cache before a chunk")
      ->check(WholeNumber(0, 1 << 24));
  app->add_option("--limit", flags->limit_percent,
                  "Per cent of the line through its neighbours that a point may be off")
      ->check(RealNumber(0, 1000));
  app->add_option("--seconds", flags->seconds,
                  "Ends measuring after so long; shapes left out are listed. 0: all are measured")
      ->check(RealNumber(0, 1e9));
  AddKvFlag(app, flags.get());
  app->footer(
      "Without --batch, --chunk and --mixed: 1..256, 1..600 and 1,8,64, else what is given; mixed\n"
      "steps first. Times are medians, of steps on their device. A point beyond the limit lies\n"
      "beside a step; if that is behind a multiple of 8, 16, 32 or 64 it is named as a tile's.\n"
      "Other points are measured again with four times the steps, which counts; what remains is\n"
      "listed as cliffs.\n"
      "Examples:\n"
      "  eventide bench shapes --model random:llama-3.1-8b --seconds 300 --json > shapes.json\n"
      "  eventide bench shapes --model random:llama-3.2-1b --batch 60..70 --chunk 1..32,64,128\n"
      "  eventide bench shapes --model random:llama-3.2-1b --mixed 1,8,64 --mixed-chunk 512");
  return [=] { return RunBenchShapes(*flags); };
}

}  // namespace eventide
