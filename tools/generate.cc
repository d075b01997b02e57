// eventide generate: one prompt, its continuation as it comes.
#include <cfloat>

#include "absl/strings/str_cat.h"
#include "core/status.h"
#include "serve/exit_stats.h"
#include "text/chat_template.h"
#include "tools/engine_flags.h"
#include "tools/flags.h"
#include "tools/interrupt.h"

namespace eventide {
namespace {

struct GenerateFlags {
  EngineFlags engine;
  std::string prompt, tokens, system;
  bool has_prompt = false, has_tokens = false, has_system = false, chat = false;
  SamplingParams sampling;
};

absl::StatusOr<std::vector<TokenId>> PromptTokens(const GenerateFlags& flags,
                                                  const OpenedEngine& opened) {
  if (flags.has_tokens) return ParseTokens(flags.tokens);
  if (opened.tokenizer == nullptr) {
    return UsageError("this model has no tokenizer: give --tokens, or --tokenizer FILE");
  }
  std::string prompt = flags.prompt;
  if (flags.chat) {
    ASSIGN_OR_RETURN(const std::string jinja,
                     ReadChatTemplate(TokenizerPath(flags.engine, opened.config)));
    ASSIGN_OR_RETURN(const ChatTemplate chat, ChatTemplate::Parse(jinja));
    prompt = chat.Ask(flags.prompt, flags.has_system ? std::optional(flags.system) : std::nullopt);
  }
  // A template says itself what stands at the beginning.
  ASSIGN_OR_RETURN(std::vector<int32_t> tokens,
                   opened.tokenizer->Encode(prompt, /*add_special_bos=*/!flags.chat));
  if (tokens.empty()) return UsageError("the prompt has no tokens: give --prompt some text");
  return tokens;
}

struct Generated {
  std::string text;
  std::vector<TokenId> tokens;
  RequestOutput last;
  int64_t start_ns = 0, first_ns = 0, end_ns = 0;
};

nlohmann::ordered_json GeneratedJson(const Generated& g, double load_ms) {
  const double more = static_cast<double>(g.tokens.size()) - 1;
  const auto ms = [](int64_t from, int64_t to) { return static_cast<double>(to - from) / 1e6; };
  nlohmann::ordered_json json;
  json["text"] = g.text;
  json["tokens"] = g.tokens;
  json["finish_reason"] = FinishReasonName(g.last.finish_reason);
  json["usage"] = {{"prompt_tokens", g.last.prompt_tokens},
                   {"completion_tokens", g.tokens.size()},
                   {"total_tokens", g.last.prompt_tokens + g.tokens.size()}};
  using Json = nlohmann::ordered_json;
  json["timing"] = {{"load_ms", load_ms},
                    {"ttft_ms", g.tokens.empty() ? Json() : Json(ms(g.start_ns, g.first_ns))},
                    {"tpot_ms", more > 0 ? ms(g.first_ns, g.end_ns) / more : 0.0},
                    {"total_ms", load_ms + ms(g.start_ns, g.end_ns)}};
  return json;
}

// What is wrong with flags, before a model is loaded, which may take minutes.
absl::Status CheckFlags(const GenerateFlags& flags) {
  if (flags.has_prompt == flags.has_tokens) {
    return UsageError("give either --prompt TEXT or --tokens IDS");
  }
  if (flags.chat && !flags.has_prompt) return UsageError("--chat asks a --prompt, not --tokens");
  if (flags.has_system && !flags.chat) return UsageError("--system is of --chat");
  const SamplingParams& s = flags.sampling;
  if (s.temperature == 0 && (s.top_k != 0 || s.top_p != 1)) {
    return UsageError("--top-k and --top-p change nothing at temperature 0: give --temperature");
  }
  Request trial;
  trial.id = "generate";
  trial.prompt = {0};
  trial.sampling = s;
  if (flags.has_tokens) {
    ASSIGN_OR_RETURN(trial.prompt, ParseTokens(flags.tokens));
  }
  return AsUsageError(ValidateRequest(trial));
}

// Runs the request to its end, or to a signal, which ends it with what there is.
absl::Status Serve(OpenedEngine& opened, Request request, bool print, Generated* g) {
  const bool text = opened.tokenizer != nullptr;
  absl::Status printed;
  DeferFirstInterrupt();
  g->start_ns = opened.clock.NowNs();
  const auto take = [&](const RequestOutput& output) {
    g->end_ns = opened.clock.NowNs();
    if (g->tokens.empty()) g->first_ns = g->end_ns;
    g->tokens.insert(g->tokens.end(), output.tokens.begin(), output.tokens.end());
    g->text += output.text;
    if (print && printed.ok()) {
      std::string shown = output.text;
      if (!text) {
        for (TokenId token : output.tokens) absl::StrAppend(&shown, token, " ");
      }
      printed = PrintText(shown);
    }
    if (output.finish_reason != FinishReason::kNone) g->last = output;
  };
  // All that it may refuse is what flags say.
  RETURN_IF_ERROR(AsUsageError(opened.engine->AddRequest(std::move(request), take)));
  while (opened.engine->HasWork() && printed.ok() && PendingInterrupt() == 0) {
    RETURN_IF_ERROR(opened.engine->Step());
  }
  opened.engine->CancelAll();
  opened.engine->Drain();
  return printed;
}

absl::Status RunGenerate(GenerateFlags& flags) {
  RETURN_IF_ERROR(CheckFlags(flags));
  if (flags.engine.max_num_seqs == 0) flags.engine.max_num_seqs = kOneByOne;
  ASSIGN_OR_RETURN(const auto opened, OpenEngine(flags.engine));
  Request request;
  request.id = "generate";
  ASSIGN_OR_RETURN(request.prompt, PromptTokens(flags, *opened));
  request.sampling = flags.sampling;
  if (opened->tokenizer != nullptr && !flags.sampling.ignore_eos) {
    for (int32_t id : opened->tokenizer->eos_ids()) request.sampling.stop_token_ids.push_back(id);
    const std::optional<int32_t> turn_end = opened->tokenizer->TokenId(kChatTurnEnd);
    if (flags.chat && turn_end) request.sampling.stop_token_ids.push_back(*turn_end);
  }
  const bool json = flags.engine.json;
  Generated g;
  RETURN_IF_ERROR(Serve(*opened, std::move(request), !json, &g));
  const bool interrupted = g.last.finish_reason == FinishReason::kAbort;
  if (!interrupted) RETURN_IF_ERROR(g.last.status);
  const bool speculates = DraftTokens(flags.engine) > 0;
  const DraftStats drafts = opened->engine->stats().drafts;
  ExitStats exits;
  exits.tokens = opened->engine->stats().computed_tokens;
  // An interrupted run says what it has, also where the device answers no more.
  if (auto left = opened->runner->TokensLeft(); left.ok()) {
    exits.left = *std::move(left);
  } else if (!interrupted) {
    return left.status();
  }
  const bool leaves = !exits.left.empty();
  if (json) {
    nlohmann::ordered_json out = GeneratedJson(g, opened->load_ms);
    if (speculates) out["speculation"] = ToJson(drafts);
    if (leaves) out["early_exit"] = ToJson(exits);
    RETURN_IF_ERROR(PrintJson(out));
  } else {
    RETURN_IF_ERROR(PrintText("\n"));
    if (speculates) std::fprintf(stderr, "[%s]\n", Summary(drafts).c_str());
    if (leaves) std::fprintf(stderr, "[%s]\n", Summary(exits).c_str());
  }
  return interrupted ? InterruptedError() : absl::OkStatus();
}

}  // namespace

CommandBody AddGenerate(CLI::App* app) {
  auto flags = std::make_shared<GenerateFlags>();
  AddEngineFlags(app, &flags->engine);
  AddDraftModelFlags(app, &flags->engine);
  CLI::Option* prompt = app->add_option("--prompt,-p", flags->prompt, "Text to continue");
  CLI::Option* tokens =
      app->add_option("--tokens", flags->tokens, "Token ids to continue, such as 1,2,3");
  app->add_flag("--chat", flags->chat,
                "The prompt is a question: put it as the checkpoint's chat template does (ChatML "
                "templates are known)");
  CLI::Option* system =
      app->add_option("--system", flags->system, "Of --chat: instead of the template's own");
  SamplingParams& s = flags->sampling;
  s.temperature = 0;
  app->add_option("--max-tokens,-n", s.max_tokens, "Tokens to generate at most")
      ->check(WholeNumber(1, UINT32_MAX));
  app->add_option("--temperature", s.temperature, "0: greedy")
      ->check(RealNumber(0, FLT_MAX));
  app->add_option("--top-k", s.top_k, "0: off")->check(WholeNumber(0, UINT32_MAX));
  app->add_option("--top-p", s.top_p, "Above 0; 1: off")->check(RealNumber(0, 1));
  app->add_option("--stop", s.stop_strings,
                  "Text that ends the answer; may be given several times");
  app->add_flag("--ignore-eos", s.ignore_eos, "Go on behind end-of-sequence tokens");
  app->footer(
      "Examples:\n"
      "  eventide generate --model stories260K.bin --prompt 'Once upon a time' --max-tokens 200\n"
      "  eventide generate --model random:test-llama --tokens 1,2,3 --temperature 0.8 --seed 7 "
      "--json\n"
      "  eventide generate --model random:qwen3-8b --speculate-model random:qwen3-0.6b "
      "--draft-tokens 4 --tokens 1,2,3");
  return [=] {
    flags->has_prompt = prompt->count() > 0;
    flags->has_tokens = tokens->count() > 0;
    flags->has_system = system->count() > 0;
    return RunGenerate(*flags);
  };
}

}  // namespace eventide
