// eventide replay: a request trace through the engine.
#include "serve/replay.h"

#include <filesystem>
#include <fstream>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/status.h"
#include "tools/engine_flags.h"
#include "tools/flags.h"
#include "tools/interrupt.h"

namespace eventide {
namespace {

struct ReplayFlags {
  EngineFlags engine;
  std::string trace, output;
  bool has_time_scale = false;
  uint64_t requests = 0;
  ReplayOptions options;
};

// Tokens that end or begin something must not appear in made-up prompts.
std::vector<TokenId> SpecialTokens(const OpenedEngine& opened) {
  std::set<TokenId> special(opened.config.eos.begin(), opened.config.eos.end());
  if (opened.config.bos >= 0) special.insert(opened.config.bos);
  const int vocab = opened.config.vocab;
  if (opened.tokenizer != nullptr) {
    for (TokenId id = 0; id < vocab; ++id) {
      if (!opened.tokenizer->IsValidId(id) || opened.tokenizer->IsSpecial(id)) special.insert(id);
    }
  }
  return {special.begin(), special.end()};
}

std::string Summary(const ReplayResult& r, double factor) {
  std::string text;
  if (factor < 1) {
    absl::StrAppendFormat(&text, "lengths scaled by %.4f to fit the model\n", factor);
  }
  absl::StrAppendFormat(&text, "requests      %d completed, %d failed\n", r.completed, r.failed);
  if (r.cancelled > 0) {
    absl::StrAppendFormat(&text, "interrupted   %d requests were cut short or never begun\n",
                          r.cancelled);
  }
  absl::StrAppendFormat(&text, "tokens        %d prompt, %d output\n", r.prompt_tokens,
                        r.output_tokens);
  absl::StrAppendFormat(&text, "time          %.2f s, %.1f output tokens/s\n", r.seconds,
                        r.output_tokens_per_second);
  absl::StrAppendFormat(&text, "first token   p50 %.1f ms, p90 %.1f ms, p99 %.1f ms\n",
                        r.ttft_ms.p50, r.ttft_ms.p90, r.ttft_ms.p99);
  absl::StrAppendFormat(&text, "per token     p50 %.1f ms, p90 %.1f ms, p99 %.1f ms\n",
                        r.tpot_ms.p50, r.tpot_ms.p90, r.tpot_ms.p99);
  absl::StrAppendFormat(&text,
                        "steps         %d, of %d distinct shapes, at most %d requests each\n",
                        r.steps, r.distinct_shapes, r.max_batch);
  absl::StrAppendFormat(&text, "compilations  %d, %d after the engine was ready\n", r.compilations,
                        r.compilations_after_ready);
  if (!r.clock.empty()) {
    absl::StrAppendFormat(
        &text, "%s idle      %.2f %% of the time with requests: %.3f s between steps, %.2f s in them\n",
        r.clock, 100 * r.idle_share(), r.idle_seconds, r.step_seconds);
  }
  if (r.prefix_hit_tokens > 0) {
    absl::StrAppendFormat(
        &text, "prefix cache  %d prompt tokens found, %.1f %%\n", r.prefix_hit_tokens,
        100 * static_cast<double>(r.prefix_hit_tokens) / static_cast<double>(r.prompt_tokens));
  }
  if (r.verified > 0) {
    absl::StrAppendFormat(&text, "alone again   %d requests, %d with other tokens\n", r.verified, r.differing);
  }
  if (r.speculates) absl::StrAppend(&text, "drafts        ", Summary(r.drafts), "\n");
  if (!r.exits.left.empty()) absl::StrAppend(&text, "early exit    ", Summary(r.exits), "\n");
  if (r.preemptions > 0) absl::StrAppendFormat(&text, "preemptions   %d\n", r.preemptions);
  return text;
}

absl::Status CheckFlags(const ReplayFlags& flags) {
  if (flags.options.closed_loop > 0 && flags.has_time_scale) {
    return UsageError("--closed-loop ignores arrival times: give it or --time-scale");
  }
  std::error_code error;
  if (std::filesystem::equivalent(flags.trace, flags.output, error)) {
    return UsageError("--output would overwrite --trace");
  }
  return absl::OkStatus();
}

absl::Status PrintResult(const ReplayResult& result, double factor, bool json) {
  RETURN_IF_ERROR(json ? PrintJson(ToJson(result)) : PrintText(Summary(result, factor)));
  if (result.failed > 0) {
    return absl::InternalError(
        absl::StrCat(result.failed, " of ", result.requests,
                     " requests failed, the first with: ", result.first_error));
  }
  if (result.differing > 0) {
    return absl::InternalError(absl::StrCat(result.differing, " of ", result.verified,
                                            " requests gave other tokens alone than in company, first ",
                                            result.first_difference, ": this must not happen; please report it"));
  }
  if (result.kv_blocks_held > 0 && result.cancelled == 0) {
    return absl::InternalError(absl::StrCat(result.kv_blocks_held, " KV blocks were not returned; please report it"));
  }
  return result.cancelled > 0 ? InterruptedError() : absl::OkStatus();
}

absl::Status RunReplay(ReplayFlags& flags) {
  RETURN_IF_ERROR(CheckFlags(flags));
  ASSIGN_OR_RETURN(Trace trace, ReadTrace(flags.trace, flags.requests));
  flags.engine.time_steps = true;
  ASSIGN_OR_RETURN(const auto opened, OpenEngine(flags.engine));
  ASSIGN_OR_RETURN(const double factor, FitTrace(&trace, opened->engine->limits().max_model_len));
  const std::vector<TokenId> special = SpecialTokens(*opened);
  ASSIGN_OR_RETURN(const PromptSynthesizer prompts,
                   PromptSynthesizer::Create(static_cast<uint32_t>(opened->config.vocab), special,
                                             flags.engine.seed));
  std::ofstream output;
  if (!flags.output.empty()) output.open(flags.output);
  ReplayRecords records([&](const std::string& line) { output << line << std::endl; });
  if (output.is_open()) {
    flags.options.on_output = [&](const RequestOutput& out) { records.Take(out); };
  }
  Progress progress;
  flags.options.sampling.temperature = 0;
  flags.options.priorities = flags.engine.scheduling_policy == "priority";
  flags.options.progress = [&](const ReplayProgress& p) {
    progress.Bar(
        "requests", static_cast<double>(p.ended), static_cast<double>(p.total),
        absl::StrFormat("%d/%d, %d running, %d queued, %.0f tokens/s", p.ended, p.total, p.running,
                        p.queued,
                        p.seconds > 0 ? static_cast<double>(p.output_tokens) / p.seconds : 0.0));
  };
  DeferFirstInterrupt();
  flags.options.stop = [&] {
    return PendingInterrupt() != 0 || (!flags.output.empty() && !output);
  };
  ASSIGN_OR_RETURN(const ReplayResult result,
                   Replay(opened->engine.get(), &opened->clock, trace, prompts, flags.options));
  progress.Clear();
  if (!flags.output.empty() && !output.flush()) {
    return absl::DataLossError(absl::StrCat("--output ", flags.output, " cannot be written"));
  }
  return PrintResult(result, factor, flags.engine.json);
}

}  // namespace

CommandBody AddReplay(CLI::App* app) {
  auto flags = std::make_shared<ReplayFlags>();
  AddEngineFlags(app, &flags->engine);
  AddDraftModelFlags(app, &flags->engine);
  app->add_option("--trace", flags->trace,
                  "CSV (TIMESTAMP,ContextTokens,GeneratedTokens) or JSON lines (timestamp, "
                  "input_length, output_length, hash_ids, priority)")
      ->required()
      ->check(NotEmpty());
  app->add_option(
         "--output,-o", flags->output,
         "JSON lines {\"id\", \"tokens\", \"finish_reason\", \"ttft_ms\", \"tpot_ms\"}, one for "
         "each request, in the order in which they end")
      ->check(NotEmpty());
  app->add_option("--requests", flags->requests, "The first so many of the trace; 0: all")
      ->check(WholeNumber(0, UINT64_MAX));
  app->add_option("--closed-loop", flags->options.closed_loop,
                  "Ignore arrival times and keep so many requests going; 0: arrive as in the trace")
      ->check(WholeNumber(0, UINT64_MAX));
  CLI::Option* time_scale = app->add_option("--time-scale", flags->options.time_scale,
                                            "Arrival times are multiplied by it; 0: all at once")
                                ->check(RealNumber(0, 1e6));
  app->add_option("--verify", flags->options.verify,
                  "Run so many of the requests again afterwards, each alone, and compare tokens")
      ->check(WholeNumber(0, UINT64_MAX));
  app->footer(
      "Prompts are made up, the same in every run; equal hash_ids give equal tokens. Lengths are "
      "scaled\n"
      "down only where the longest exceeds the model's length.\n"
      "gpu idle (on a CPU: cpu idle): time between the end of a step and the beginning of the\n"
      "next one, by the device's clock, while requests waited or ran, over that and the time in\n"
      "steps.\n"
      "Examples:\n"
      "  eventide replay --model random:test-llama --trace trace.csv --requests 200 --closed-loop "
      "16 --json\n"
      "  eventide replay --model random:test-llama --trace trace.csv --closed-loop 64 --verify 50\n"
      "  eventide replay --model random:qwen3-8b --speculate-model random:qwen3-0.6b --trace "
      "trace.csv");
  return [=] {
    flags->has_time_scale = time_scale->count() > 0;
    return RunReplay(*flags);
  };
}

}  // namespace eventide
