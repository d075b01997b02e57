// eventide score: log probabilities of given tokens, one JSON line each way.
#include "serve/score.h"

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "core/status.h"
#include "tools/engine_flags.h"
#include "tools/flags.h"
#include "tools/interrupt.h"
#include "tools/lines.h"

namespace eventide {
namespace {

using Json = nlohmann::ordered_json;

struct ScoreFlags {
  EngineFlags engine;
  std::string input = "-", output = "-";
  int top = 0;
};

absl::StatusOr<std::vector<TokenId>> TokensOf(const Json& line, const OpenedEngine& opened) {
  if (line.contains("tokens") == line.contains("text")) {
    return absl::InvalidArgumentError("a line has either \"tokens\" or \"text\"");
  }
  if (line.contains("text")) {
    if (!line["text"].is_string()) return absl::InvalidArgumentError("\"text\" is not a string");
    if (opened.tokenizer == nullptr) {
      return absl::InvalidArgumentError(
          "this model has no tokenizer: give \"tokens\", or --tokenizer");
    }
    return opened.tokenizer->Encode(line["text"].get<std::string>(), /*add_special_bos=*/true);
  }
  std::vector<TokenId> tokens;
  if (!line["tokens"].is_array()) return absl::InvalidArgumentError("\"tokens\" is not an array");
  for (const Json& token : line["tokens"]) {
    if (!token.is_number_integer()) {
      return absl::InvalidArgumentError(absl::StrCat("token ", token.dump(), " is not an integer"));
    }
    // Unsigned numbers beyond int64 come out negative: outside of every vocabulary as well.
    const int64_t id = token.get<int64_t>();
    if (id < 0 || id >= opened.config.vocab) {
      return absl::InvalidArgumentError(absl::StrCat(
          "token ", token.dump(), " is not in the vocabulary of ", opened.config.vocab));
    }
    tokens.push_back(static_cast<TokenId>(id));
  }
  return tokens;
}

absl::StatusOr<Json> ScoreLine(const Json& line, OpenedEngine& opened, int top) {
  ASSIGN_OR_RETURN(const std::vector<TokenId> tokens, TokensOf(line, opened));
  ASSIGN_OR_RETURN(const std::vector<TokenScore> scores,
                   ScoreTokens(opened.runner.get(), tokens, top));
  Json logprobs = Json::array({nullptr}), tops = Json::array({nullptr});
  for (const TokenScore& score : scores) {
    logprobs.push_back(score.logprob);
    Json best = Json::array();
    for (const auto& [id, logprob] : score.top) best.push_back({id, logprob});
    tops.push_back(std::move(best));
  }
  Json out;
  out["id"] = line.contains("id") ? line["id"] : Json(nullptr);
  out["tokens"] = tokens;
  out["logprobs"] = std::move(logprobs);
  if (top > 0) out["top"] = std::move(tops);
  return out;
}

struct Totals {
  int64_t lines = 0, errors = 0, tokens = 0;
};

// One line in, one line out; what is wrong with a line is its result.
Json ScoreText(const std::string& text, OpenedEngine& opened, int top, Totals* totals) {
  ++totals->lines;
  const Json line = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  absl::StatusOr<Json> scored =
      line.is_object()
          ? ScoreLine(line, opened, top)
          : absl::StatusOr<Json>(absl::InvalidArgumentError("the line is not a JSON object"));
  if (scored.ok()) {
    totals->tokens += static_cast<int64_t>((*scored)["tokens"].size());
    return *std::move(scored);
  }
  ++totals->errors;
  Json out;
  out["id"] = line.is_object() && line.contains("id") ? line["id"] : Json(nullptr);
  out["error"] = std::string(scored.status().message());
  return out;
}

// Scores line by line until the input ends or a signal comes; what is written is whole lines.
absl::Status ScoreAll(LineReader& input, const std::string& path, int top, OpenedEngine& opened,
                      Totals* totals) {
  std::ofstream out;
  if (path != "-") out.open(path);
  if (path != "-" && !out) {
    return absl::NotFoundError(absl::StrCat("--output ", path, " cannot be written"));
  }
  for (std::string text;;) {
    ASSIGN_OR_RETURN(const bool more, input.Next(&text));
    if (!more) break;
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    const Json line = ScoreText(text, opened, top, totals);
    const std::string dumped = line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
    if (path == "-") {
      RETURN_IF_ERROR(PrintText(dumped));
    } else if (!(out << dumped)) {
      break;
    }
  }
  if (path != "-" && !out.flush()) {
    return absl::DataLossError(absl::StrCat("--output ", path, " cannot be written"));
  }
  return absl::OkStatus();
}

absl::Status RunScore(const ScoreFlags& flags) {
  if (flags.engine.json && flags.output == "-") {
    return UsageError("--json prints a summary on stdout: give --output a file");
  }
  std::error_code error;
  if (flags.input != "-" && std::filesystem::equivalent(flags.input, flags.output, error)) {
    return UsageError("--output would overwrite --input");
  }
  ASSIGN_OR_RETURN(LineReader input, LineReader::Open(flags.input));
  EngineFlags engine = flags.engine;
  if (engine.max_num_seqs == 0) engine.max_num_seqs = kOneByOne;
  ASSIGN_OR_RETURN(const auto opened, OpenEngine(engine, kScoreOutputs));
  if (flags.top > opened->config.vocab) {
    return UsageError(absl::StrCat("--top ", flags.top, ": the model has only ",
                                   opened->config.vocab, " tokens"));
  }
  DeferFirstInterrupt();
  const int64_t start = opened->clock.NowNs();
  Totals totals;
  RETURN_IF_ERROR(ScoreAll(input, flags.output, flags.top, *opened, &totals));
  if (flags.engine.json) {
    RETURN_IF_ERROR(
        PrintJson({{"lines", totals.lines},
                   {"errors", totals.errors},
                   {"tokens", totals.tokens},
                   {"seconds", static_cast<double>(opened->clock.NowNs() - start) / 1e9}}));
  }
  return PendingInterrupt() != 0 ? InterruptedError() : absl::OkStatus();
}

}  // namespace

CommandBody AddScore(CLI::App* app) {
  auto flags = std::make_shared<ScoreFlags>();
  AddEngineFlags(app, &flags->engine);
  app->add_option("--input,-i", flags->input,
                  "Lines {\"id\", \"tokens\"} or {\"id\", \"text\"}; -: stdin")
      ->check(NotEmpty());
  app->add_option("--output,-o", flags->output,
                  "Lines {\"id\", \"tokens\", \"logprobs\", \"top\"}, in the same order; -: stdout")
      ->check(NotEmpty());
  app->add_option("--top", flags->top, "Also the so many likeliest tokens of each position")
      ->check(WholeNumber(0, 1000));
  app->footer(
      "A line that cannot be scored gives {\"id\", \"error\"} and the run goes on. A token of probability 0 has a\n"
      "log probability of -9999, as in vLLM: JSON has no infinity.\n"
      "Example:\n"
      "  echo '{\"id\": 1, \"tokens\": [1, 2, 3]}' | eventide score --model random:test-llama "
      "--top 2");
  return [=] { return RunScore(*flags); };
}

}  // namespace eventide
