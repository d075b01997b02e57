// GGUF files do not carry their regular expressions, only a name for them: this is the table.
#include <iterator>

#include "core/status.h"
#include "text/pre_tokenizer.h"

namespace eventide {
namespace {

constexpr char kLlama3Pattern[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kQwen2Pattern[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct Row {
  const char* name;
  const char* patterns[4];  // applied in this order; unused ones are null
};

// "default" is what the GGUF converters' own runtime does when nothing better is known.
constexpr Row kRows[] = {
    {"gpt-2", {kGpt2Pattern}},
    {"gpt2", {kGpt2Pattern}},
    {"phi-2", {kGpt2Pattern}},
    {"smollm", {R"(\p{N})", kGpt2Pattern}},
    {"starcoder", {R"(\p{N})", kGpt2Pattern}},
    {"refact", {R"(\p{N})", kGpt2Pattern}},
    {"command-r", {R"(\p{N})", kGpt2Pattern}},
    {"llama-bpe", {kLlama3Pattern}},
    {"llama3", {kLlama3Pattern}},
    {"llama-v3", {kLlama3Pattern}},
    {"qwen2", {kQwen2Pattern}},
    {"default", {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2Pattern, R"(\p{N}+)", R"([0-9][0-9][0-9])"}},
};

}  // namespace

absl::StatusOr<std::vector<std::string>> PreTokenizerPatterns(absl::string_view name) {
  std::string known;
  for (const Row& row : kRows) {
    absl::StrAppend(&known, known.empty() ? "" : ", ", row.name);
    if (name != row.name) continue;
    std::vector<std::string> patterns;
    for (const char* pattern : row.patterns) {
      if (pattern != nullptr) patterns.push_back(pattern);
    }
    return patterns;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("pre-tokenizer '", name, "' is not known; known are: ", known));
}

absl::StatusOr<PreTokenizer> PreTokenizerNamed(absl::string_view name) {
  ASSIGN_OR_RETURN(const std::vector<std::string> patterns, PreTokenizerPatterns(name));
  PreTokenizer pre;
  for (const std::string& pattern : patterns) {
    ASSIGN_OR_RETURN(Regex regex, Regex::Compile(pattern));
    pre.AddSplit(std::move(regex), PreTokenizer::Keep::kIsolated);
  }
  return pre;
}

}  // namespace eventide
