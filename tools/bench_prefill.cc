// eventide bench prefill: what a step takes that computes one chunk of a prompt, against the larger
// of two floors: reading its bytes at the speed of a plain read measured in the same run, and
// computing its products at the peak of the card.
#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/status.h"
#include "tools/bench.h"
#include "tools/bench_steps.h"
#include "tools/flags.h"

namespace eventide {
namespace {

struct PrefillFlags : StepBenchFlags {
  PrefillFlags() { steps = 20, warmup = 3; }

  std::vector<int> chunks = {512};
  int context = 0;
  double peak_tflops = 0;
};

// Of dense bf16 and fp16 products with float32 sums, as the vendor's data sheets state it; 0: not
// known here. A card under load clocks lower, so no kernel gets there.
double DataSheetTflops(const std::string& gpu) {
  struct Card {
    const char* name;
    double tflops;
  };
  // PCIe and NVL cards have names that begin alike and other clocks.
  static constexpr Card kCards[] = {
      {"NVIDIA H200", 989.4}, {"NVIDIA H100 80GB HBM3", 989.4}, {"NVIDIA A100-SXM4", 312.0}};
  if (absl::StrContains(gpu, "NVL")) return 0;
  for (const Card& card : kCards) {
    if (absl::StartsWith(gpu, card.name)) return card.tflops;
  }
  return 0;
}

struct Peak {
  double tflops = 0;          // 0: not known
  const char* from = "none";  // "flag" or "data sheet"
};

Peak PeakOf(const PrefillFlags& flags, const ReadCeiling& ceiling) {
  if (flags.peak_tflops > 0) return {flags.peak_tflops, "flag"};
  const double tflops = DataSheetTflops(ceiling.name());
  return tflops > 0 ? Peak{tflops, "data sheet"} : Peak{};
}

struct MeasuredRow {
  StepShape shape;
  StepTimes times;
  double memory_ms = 0, compute_ms = 0;  // floors; the second is 0 where no peak is known
  double floor_ms() const { return std::max(memory_ms, compute_ms); }
  double share() const { return times.ms.p50 > 0 ? floor_ms() / times.ms.p50 : 0; }
  double tflops() const { return times.ms.p50 > 0 ? times.flops.total() / times.ms.p50 / 1e9 : 0; }
};

nlohmann::ordered_json RowJson(const PrefillFlags& flags, const ReadCeiling& ceiling,
                               const Peak& peak, const MeasuredRow& row) {
  nlohmann::ordered_json json = {{"model", flags.engine.model},
                                 {"batch", 1},
                                 {"chunk", row.shape.chunk},
                                 {"context", row.shape.chunk_context},
                                 {"policy", flags.engine.policy},
                                 {"ms", ToJson(row.times.ms)},
                                 {"tflops", row.tflops()},
                                 {"flops",
                                  {{"linears", row.times.flops.linears},
                                   {"attention", row.times.flops.attention},
                                   {"head", row.times.flops.head}}},
                                 {"bytes", row.times.bytes},
                                 {"ceiling_gbps", ceiling.gbps()},
                                 {"memory_floor_ms", row.memory_ms}};
  if (peak.tflops > 0) {
    json["peak_tflops"] = peak.tflops;
    json["peak_from"] = peak.from;
    json["compute_floor_ms"] = row.compute_ms;
  }
  json["floor_ms"] = row.floor_ms();
  json["share"] = row.share();
  json["gpu"] = ceiling.name();
  json["wall_ms"] = row.times.wall_ms;
  json["submit_us"] = row.times.submit_us;
  return json;
}

std::string Table(const PrefillFlags& flags, const ReadCeiling& ceiling, const Peak& peak,
                  const std::vector<MeasuredRow>& rows) {
  std::string text = absl::StrFormat("%s on %s, read ceiling %.1f GB/s, ", flags.engine.model,
                                     ceiling.name(), ceiling.gbps());
  absl::StrAppend(&text,
                  peak.tflops > 0
                      ? absl::StrFormat("peak %.1f TFLOP/s (%s)", peak.tflops, peak.from)
                      : "no peak known (--peak-tflops)",
                  ", policy ", flags.engine.policy, "\n");
  absl::StrAppendFormat(&text, "%6s %8s %9s %9s %9s %9s %10s %10s %6s %9s\n", "chunk", "context",
                        "p5 ms", "median", "p95 ms", "TFLOP/s", "memory ms", "compute ms", "share",
                        "wall ms");
  for (const MeasuredRow& row : rows) {
    const Percentiles& ms = row.times.ms;
    absl::StrAppendFormat(&text, "%6d %8d %9.3f %9.3f %9.3f %9.2f %10.3f %10s %6.2f %9.3f\n",
                          row.shape.chunk, row.shape.chunk_context, ms.p5, ms.p50, ms.p95,
                          row.tflops(), row.memory_ms,
                          peak.tflops > 0 ? absl::StrFormat("%.3f", row.compute_ms) : "-",
                          row.share(), row.times.wall_ms);
  }
  return text;
}

// The chunks that fit; the others are named in `skipped`.
absl::StatusOr<std::vector<StepShape>> FittingShapes(const PrefillFlags& flags,
                                                     const StepBenchSetup& setup,
                                                     nlohmann::ordered_json* skipped) {
  std::vector<StepShape> shapes;
  for (const int chunk : flags.chunks) {
    const StepShape shape{0, 0, chunk, flags.context};
    if (Fits(setup, shape)) {
      shapes.push_back(shape);
    } else {
      skipped->push_back({{"chunk", chunk}, {"context", flags.context}});
    }
  }
  if (shapes.empty()) return NoShapeFits(setup, "--chunk or --context");
  return shapes;
}

absl::StatusOr<std::vector<MeasuredRow>> MeasureAll(const PrefillFlags& flags,
                                                    const std::vector<StepShape>& shapes,
                                                    StepBench* bench) {
  Progress progress;
  std::vector<MeasuredRow> rows;
  const StepCounts counts{flags.steps, flags.warmup};
  for (const StepShape& shape : shapes) {
    progress.Bar("prefill", static_cast<double>(rows.size()), static_cast<double>(shapes.size()),
                 absl::StrCat("chunk ", shape.chunk));
    ASSIGN_OR_RETURN(const StepTimes times, bench->Measure(shape, counts));
    rows.push_back({shape, times});
  }
  return rows;
}

absl::Status RunBenchPrefill(const PrefillFlags& flags) {
  ASSIGN_OR_RETURN(StepBenchSetup setup, OpenStepBench(flags.engine, flags.kv_gib));
  nlohmann::ordered_json skipped = nlohmann::ordered_json::array();
  for (const int chunk : flags.chunks) {
    RETURN_IF_ERROR(CheckChunkFlags(setup, chunk, flags.context));
  }
  ASSIGN_OR_RETURN(setup.options.shapes, FittingShapes(flags, setup, &skipped));
  ASSIGN_OR_RETURN(const auto bench, LoadStepBench(setup));
  ASSIGN_OR_RETURN(std::vector<MeasuredRow> rows,
                   MeasureAll(flags, setup.options.shapes, bench.get()));
  RETURN_IF_ERROR(setup.ceiling.Measure());
  const Peak peak = PeakOf(flags, setup.ceiling);
  for (MeasuredRow& row : rows) {
    row.memory_ms = FloorMs(row.times, setup.ceiling);
    row.compute_ms = peak.tflops > 0 ? row.times.flops.total() / peak.tflops / 1e9 : 0;
  }
  const uint64_t compilations = bench->runner().compilations();
  if (!flags.engine.json) {
    std::string text = Table(flags, setup.ceiling, peak, rows);
    for (const auto& shape : skipped) {
      absl::StrAppendFormat(&text, "%6d %8d does not fit the KV memory\n",
                            shape["chunk"].get<int>(), shape["context"].get<int>());
    }
    absl::StrAppendFormat(&text, "compilations %d (of the model, for all rows together)\n",
                          compilations);
    return PrintText(text);
  }
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const MeasuredRow& row : rows) list.push_back(RowJson(flags, setup.ceiling, peak, row));
  return PrintJson({{"rows", list},
                    {"skipped", skipped},
                    {"compilations", compilations},
                    {"workers", bench->runner().executor().workers()}});
}

}  // namespace

CommandBody AddBenchPrefill(CLI::App* app) {
  auto flags = std::make_shared<PrefillFlags>();
  AddStepBenchFlags(app, flags.get());
  app->add_option("--chunk", flags->chunks, "Prompt tokens of the step's one row, such as 128,512,2048")
      ->delimiter(',')
      ->check(WholeNumber(1, 1 << 20));
  app->add_option("--context", flags->context, "Tokens in the KV cache before them")
      ->check(WholeNumber(0, 1 << 24));
  AddKvFlag(app, flags.get());
  app->add_option(
         "--peak-tflops", flags->peak_tflops,
         "Of the compute floor; 0: the card's data sheet where its name is known, else none")
      ->check(RealNumber(0, 1e6));
  app->footer(
      "TFLOP/s: 2 x weights of the layers' linears x tokens, attention of every token with itself\n"
      "and those before it, the head for the chunk's last token, the only one that has logits;\n"
      "over the median of the step on its device. bytes: linears and head once, KV of the "
      "context.\n"
      "share: the larger floor / median.\n"
      "Examples:\n"
      "  eventide bench prefill --model random:llama-3.1-8b --chunk 128,512,2048 --json\n"
      "  eventide bench prefill --model random:llama-3.1-8b --chunk 512 --context 8192");
  return [=] { return RunBenchPrefill(*flags); };
}

}  // namespace eventide
