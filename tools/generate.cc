// eventide generate: one prompt, its continuation as it comes.
#include "absl/strings/str_cat.h"
#include "core/status.h"
#include "tools/engine_flags.h"

namespace eventide {
namespace {

struct GenerateFlags {
  EngineFlags engine;
  std::string prompt, tokens;
  bool has_prompt = false, has_tokens = false;
  SamplingParams sampling;
};

absl::StatusOr<std::vector<TokenId>> PromptTokens(const GenerateFlags& flags,
                                                  const OpenedEngine& opened) {
  if (flags.has_tokens) return ParseTokens(flags.tokens);
  if (opened.tokenizer == nullptr) {
    return UsageError("this model has no tokenizer: give --tokens, or --tokenizer FILE");
  }
  ASSIGN_OR_RETURN(std::vector<int32_t> tokens,
                   opened.tokenizer->Encode(flags.prompt, /*add_special_bos=*/true));
  if (tokens.empty()) return UsageError("the prompt has no tokens: give --prompt some text");
  return tokens;
}

struct Generated {
  std::string text;
  std::vector<TokenId> tokens;
  RequestOutput last;
  int64_t start_ns = 0, first_ns = 0, end_ns = 0;
};

nlohmann::ordered_json ToJson(const Generated& g, double load_ms) {
  const double more = static_cast<double>(g.tokens.size()) - 1;
  const auto ms = [](int64_t from, int64_t to) { return static_cast<double>(to - from) / 1e6; };
  nlohmann::ordered_json json;
  json["text"] = g.text;
  json["tokens"] = g.tokens;
  json["finish_reason"] = FinishReasonName(g.last.finish_reason);
  json["usage"] = {{"prompt_tokens", g.last.prompt_tokens},
                   {"completion_tokens", g.tokens.size()},
                   {"total_tokens", g.last.prompt_tokens + g.tokens.size()}};
  json["timing"] = {{"load_ms", load_ms},
                    {"ttft_ms", ms(g.start_ns, g.first_ns)},
                    {"tpot_ms", more > 0 ? ms(g.first_ns, g.end_ns) / more : 0.0},
                    {"total_ms", load_ms + ms(g.start_ns, g.end_ns)}};
  return json;
}

absl::Status RunGenerate(GenerateFlags& flags) {
  if (flags.has_prompt == flags.has_tokens) {
    return UsageError("give either --prompt TEXT or --tokens IDS");
  }
  // Before a model is loaded, which may take minutes.
  Request trial;
  trial.id = "generate";
  trial.prompt = {0};
  trial.sampling = flags.sampling;
  if (flags.has_tokens) {
    ASSIGN_OR_RETURN(trial.prompt, ParseTokens(flags.tokens));
  }
  if (const absl::Status valid = ValidateRequest(trial); !valid.ok()) {
    return UsageError(std::string(valid.message()));
  }
  if (flags.engine.max_num_seqs == 0) flags.engine.max_num_seqs = 1;
  ASSIGN_OR_RETURN(const auto opened, OpenEngine(flags.engine));
  Request request;
  request.id = "generate";
  ASSIGN_OR_RETURN(request.prompt, PromptTokens(flags, *opened));
  request.sampling = flags.sampling;
  if (opened->tokenizer != nullptr && !flags.sampling.ignore_eos) {
    for (int32_t id : opened->tokenizer->eos_ids()) request.sampling.stop_token_ids.push_back(id);
  }
  Generated g;
  const bool json = flags.engine.json, text = opened->tokenizer != nullptr;
  absl::Status printed;
  g.start_ns = opened->clock.NowNs();
  RETURN_IF_ERROR(opened->engine->AddRequest(std::move(request), [&](const RequestOutput& output) {
    g.end_ns = opened->clock.NowNs();
    if (g.tokens.empty()) g.first_ns = g.end_ns;
    g.tokens.insert(g.tokens.end(), output.tokens.begin(), output.tokens.end());
    g.text += output.text;
    if (!json && printed.ok()) {
      std::string shown = output.text;
      if (!text) {
        for (TokenId token : output.tokens) absl::StrAppend(&shown, token, " ");
      }
      printed = PrintText(shown);
    }
    if (output.finish_reason != FinishReason::kNone) g.last = output;
  }));
  while (opened->engine->HasWork() && printed.ok()) RETURN_IF_ERROR(opened->engine->Step());
  if (!printed.ok()) opened->engine->CancelAll();
  opened->engine->Drain();
  RETURN_IF_ERROR(printed);
  RETURN_IF_ERROR(g.last.status);
  if (json) return PrintJson(ToJson(g, opened->load_ms));
  return PrintText("\n");
}

}  // namespace

CommandBody AddGenerate(CLI::App* app) {
  auto flags = std::make_shared<GenerateFlags>();
  AddEngineFlags(app, &flags->engine);
  CLI::Option* prompt = app->add_option("--prompt,-p", flags->prompt, "Text to continue");
  CLI::Option* tokens =
      app->add_option("--tokens", flags->tokens, "Token ids to continue, such as 1,2,3");
  SamplingParams& s = flags->sampling;
  s.temperature = 0;
  app->add_option("--max-tokens,-n", s.max_tokens, "Tokens to generate at most");
  app->add_option("--temperature", s.temperature, "0: greedy (the default)");
  app->add_option("--top-k", s.top_k, "0: off");
  app->add_option("--top-p", s.top_p, "1: off");
  app->add_option("--stop", s.stop_strings,
                  "Text that ends the answer; may be given several times");
  app->add_flag("--ignore-eos", s.ignore_eos, "Go on behind end-of-sequence tokens");
  app->footer(
      "Examples:\n"
      "  eventide generate --model stories260K.bin --prompt 'Once upon a time' --max-tokens 200\n"
      "  eventide generate --model random:test-llama --tokens 1,2,3 --temperature 0.8 --seed 7 "
      "--json");
  return [=] {
    flags->has_prompt = prompt->count() > 0;
    flags->has_tokens = tokens->count() > 0;
    return RunGenerate(*flags);
  };
}

}  // namespace eventide
