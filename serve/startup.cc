#include "serve/startup.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/status.h"

namespace eventide {
namespace {

constexpr PhaseName kPhases[] = {
    {"exec_to_main", "the operating system loads and links the program"},
    {"device", "GPU: driver and context; CPU: worker threads"},
    {"config", "flags and the model's configuration"},
    {"tokenizer", "the tokenizer, where the model has one"},
    {"weights_map", "opening, mapping and checking the weights' files"},
    {"weights_read", "reading weights into memory, where it is not part of pack"},
    {"pack", "weights into the layout of kernels, and to the device"},
    {"graph", "building the model's graph"},
    {"verify", "verifying and lowering it"},
    {"generate", "GPU: the kernel's source; CPU, simulator: expressions to evaluate"},
    {"nvrtc", "GPU: compiling the kernel, or taking it from the cache"},
    {"module_load", "GPU: loading the kernel"},
    {"kv_alloc", "memory for KV blocks, weights and activations; the engine"},
    {"first_step", "the first step of the first request"},
    {"first_token", "from there to its first token"},
};

constexpr int kPercentages[] = {10, 25, 50, 75, 90, 99};

Request MakeRequest(Engine* engine, int number, int tokens, uint32_t max_tokens) {
  const uint32_t vocab = engine->runner().info().vocab_size;
  Request request;
  request.id = absl::StrCat("startup-", number);
  for (int i = 0; i < tokens; ++i) {
    request.prompt.push_back(
        static_cast<TokenId>(static_cast<uint32_t>(number * 131 + i * 37 + 1) % vocab));
  }
  request.sampling.temperature = 0;
  request.sampling.max_tokens = max_tokens;
  request.sampling.ignore_eos = true;
  return request;
}

// Linear between the closest ranks, as numpy does it.
double InterpolatedPercentile(std::vector<double> values, int percent) {
  std::sort(values.begin(), values.end());
  const double at = static_cast<double>(values.size() - 1) * percent / 100;
  const size_t below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (values[above] - values[below]) * (at - static_cast<double>(below));
}

std::string Bar(double ms, double most, char letter) {
  constexpr double kWidth = 40;
  if (most <= 0) return "";
  return std::string(static_cast<size_t>(std::lround(ms / most * kWidth)), letter);
}

}  // namespace

absl::Span<const PhaseName> StartupPhases() {
  return kPhases;
}

double StartupReport::Ms(const std::string& phase) const {
  for (const Phase& p : phases) {
    if (p.name == phase) return p.ms;
  }
  return 0;
}

absl::Status ServeFirstToken(Engine* engine, int tokens, PhaseLog* phases) {
  const uint64_t most = engine->limits().max_model_len - 1;
  const int prompt = static_cast<int>(std::min<uint64_t>(static_cast<uint64_t>(tokens), most));
  bool arrived = false;
  absl::Status status;
  const auto take = [&](const RequestOutput& output) {
    arrived = arrived || !output.tokens.empty() || output.finish_reason != FinishReason::kNone;
    status.Update(output.status);
  };
  {
    const PhaseSpan span(phases, "first_step");
    RETURN_IF_ERROR(engine->AddRequest(MakeRequest(engine, 0, prompt, 1), take));
    while (!arrived && engine->stats().computed_tokens == 0) RETURN_IF_ERROR(engine->Step());
  }
  const PhaseSpan span(phases, "first_token");
  while (!arrived) {
    if (!engine->HasWork()) return absl::InternalError("the first request ended without a token");
    RETURN_IF_ERROR(engine->Step());
  }
  return status;
}

absl::StatusOr<uint64_t> TryShapes(Engine* engine, int batches) {
  const uint64_t seen = engine->stats().distinct_shapes;
  absl::Status status;
  // Prompts that no request before had: what the prefix cache knows would change their shapes.
  int number = 1 + static_cast<int>(engine->stats().accepted);
  for (int batch = 1; batch <= batches; ++batch) {
    const int rows = std::min<int>(batch, static_cast<int>(engine->limits().max_num_seqs));
    for (int row = 0; row < rows; ++row) {
      const uint64_t longest = engine->limits().max_model_len - 3;
      const int tokens = static_cast<int>(
          std::min<uint64_t>(static_cast<uint64_t>(1 + batch * 3 + row * 5), longest));
      RETURN_IF_ERROR(
          engine->AddRequest(MakeRequest(engine, number++, tokens, 3),
                             [&](const RequestOutput& output) { status.Update(output.status); }));
    }
    while (engine->HasWork()) RETURN_IF_ERROR(engine->Step());
    RETURN_IF_ERROR(status);
  }
  return engine->stats().distinct_shapes - seen;
}

void FinishReport(const PhaseLog& log, double total_ms, StartupReport* report) {
  report->total_ms = total_ms;
  report->unaccounted_ms = total_ms - log.TotalMs();
  for (const PhaseName& known : kPhases) {
    for (const Phase& phase : log.phases()) {
      if (phase.name == known.name) report->phases.push_back(phase);
    }
  }
  EVT_CHECK(report->phases.size() == log.phases().size());
}

nlohmann::ordered_json ToJson(const StartupReport& r) {
  nlohmann::ordered_json phases = nlohmann::ordered_json::array();
  for (const Phase& phase : r.phases) phases.push_back({{"name", phase.name}, {"ms", phase.ms}});
  return {{"model", r.model},
          {"device", r.device},
          {"phases", phases},
          {"total_ms", r.total_ms},
          {"unaccounted_ms", r.unaccounted_ms},
          {"compilations", r.compilations},
          {"shape_specialisations", r.shape_specialisations},
          {"shapes_tried", r.shapes_tried},
          {"cubin_bytes", r.cubin_bytes},
          {"cache", r.cache},
          {"cache_note", r.cache_note}};
}

absl::StatusOr<StartupReport> StartupFromJson(const nlohmann::json& json) {
  StartupReport r;
  try {
    r.model = json.at("model");
    r.device = json.at("device");
    for (const nlohmann::json& phase : json.at("phases")) {
      r.phases.push_back({phase.at("name"), phase.at("ms")});
    }
    r.total_ms = json.at("total_ms");
    r.unaccounted_ms = json.at("unaccounted_ms");
    r.compilations = json.at("compilations");
    r.shape_specialisations = json.at("shape_specialisations");
    r.shapes_tried = json.at("shapes_tried");
    r.cubin_bytes = json.at("cubin_bytes");
    r.cache = json.at("cache");
    r.cache_note = json.at("cache_note");
  } catch (const nlohmann::json::exception& error) {
    return absl::DataLossError(absl::StrCat("a report of a start: ", error.what()));
  }
  return r;
}

nlohmann::ordered_json StartupTimesJson(const std::string& kind,
                                        absl::Span<const StartupReport> reports) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (reports.empty()) return json;
  const auto add = [&](const std::string& what, auto milliseconds) {
    std::vector<double> seconds;
    double sum = 0;
    for (const StartupReport& report : reports) {
      seconds.push_back(milliseconds(report) / 1e3);
      sum += seconds.back();
    }
    const std::string key = absl::StrCat(kind, "_", what);
    json[absl::StrCat("avg_", key, "_time")] = sum / static_cast<double>(seconds.size());
    json[absl::StrCat(key, "_times")] = seconds;
    nlohmann::ordered_json percentiles;
    for (const int percent : kPercentages) {
      percentiles[absl::StrCat(percent)] = InterpolatedPercentile(seconds, percent);
    }
    json[absl::StrCat(key, "_percentiles")] = percentiles;
  };
  add("startup", [](const StartupReport& r) { return r.total_ms; });
  add("compilation", [](const StartupReport& r) { return r.CompilationMs(); });
  return json;
}

std::string StartupTable(absl::Span<const StartupReport> reports) {
  constexpr char kLetters[] = "#=";
  EVT_CHECK(!reports.empty() && reports.size() <= 2);
  std::string text = absl::StrFormat("%-14s", absl::StrCat("phase"));
  double most = 0;
  for (const StartupReport& r : reports) {
    absl::StrAppendFormat(&text, "%12s", r.cache);
    for (const Phase& phase : r.phases) most = std::max(most, phase.ms);
  }
  absl::StrAppend(&text, "\n");
  const auto line = [&](const std::string& name, auto value, bool bars) {
    absl::StrAppendFormat(&text, "%-14s", name);
    for (const StartupReport& r : reports) absl::StrAppendFormat(&text, "%9.2f ms", value(r));
    for (size_t i = 0; bars && i < reports.size(); ++i) {
      const std::string bar = Bar(value(reports[i]), most, kLetters[i]);
      if (bar.empty()) continue;
      // The second bar goes below the first one.
      if (i > 0) absl::StrAppend(&text, "\n", std::string(14 + 12 * reports.size(), ' '));
      absl::StrAppend(&text, "  ", bar);
    }
    absl::StrAppend(&text, "\n");
  };
  for (const PhaseName& phase : kPhases) {
    const bool there = std::any_of(reports.begin(), reports.end(), [&](const StartupReport& r) {
      return std::any_of(r.phases.begin(), r.phases.end(),
                         [&](const Phase& p) { return p.name == phase.name; });
    });
    if (there)
      line(
          phase.name, [&](const StartupReport& r) { return r.Ms(phase.name); }, true);
  }
  line(
      "unaccounted", [](const StartupReport& r) { return r.unaccounted_ms; }, false);
  line(
      "total", [](const StartupReport& r) { return r.total_ms; }, false);
  for (const StartupReport& r : reports) {
    absl::StrAppendFormat(&text, "%s: %s on %s, %d compilation%s", r.cache, r.model, r.device,
                          r.compilations, r.compilations == 1 ? "" : "s");
    if (r.cubin_bytes > 0) absl::StrAppendFormat(&text, ", kernel of %d bytes", r.cubin_bytes);
    absl::StrAppendFormat(&text, "; %d kernels more for %d further shapes\n",
                          r.shape_specialisations, r.shapes_tried);
    if (!r.cache_note.empty()) absl::StrAppendFormat(&text, "cache: %s\n", r.cache_note);
  }
  return text;
}

}  // namespace eventide
