#include "text/gguf_tokenizer.h"

#include <algorithm>
#include <utility>

#include "core/status.h"
#include "text/bpe_tokenizer.h"

namespace eventide {
namespace {

absl::Status CheckSizes(const BytePairVocab& vocab) {
  if (vocab.tokens.empty()) return absl::InvalidArgumentError("tokenizer.ggml.tokens is empty");
  if (!vocab.types.empty() && vocab.types.size() != vocab.tokens.size()) {
    return absl::InvalidArgumentError(absl::StrCat("tokenizer.ggml.token_type has ",
                                                   vocab.types.size(), " values for ",
                                                   vocab.tokens.size(), " tokens"));
  }
  const int64_t count = static_cast<int64_t>(vocab.tokens.size());
  for (const auto& [id, name] : {std::make_pair(vocab.bos, "bos"), std::make_pair(vocab.eos, "eos"),
                                 std::make_pair(vocab.unk, "unknown")}) {
    if (id && (*id < 0 || *id >= count)) {
      return absl::InvalidArgumentError(absl::StrCat("tokenizer.ggml.", name, "_token_id is ", *id,
                                                     ", there are ", count, " tokens"));
    }
  }
  return absl::OkStatus();
}

GgufTokenType TypeOf(const BytePairVocab& vocab, size_t id) {
  return vocab.types.empty() ? GgufTokenType::kNormal : static_cast<GgufTokenType>(vocab.types[id]);
}

absl::StatusOr<Bpe> ByteLevelModel(BytePairVocab* vocab) {
  std::vector<std::pair<std::string, std::string>> merges;
  merges.reserve(vocab->merges.size());
  for (const std::string& merge : vocab->merges) {
    // Parts are spelled without spaces; a part may not be empty.
    const size_t space = merge.find(' ', 1);
    if (merge.empty() || space == std::string::npos || space + 1 == merge.size()) {
      return absl::InvalidArgumentError(absl::StrCat("tokenizer.ggml.merges: entry ", merges.size(),
                                                     " ('", merge, "') is not a pair of tokens"));
    }
    merges.emplace_back(merge.substr(0, space), merge.substr(space + 1));
  }
  BpeOptions options;
  options.byte_level = true;
  options.ignore_merges = ByteLevelIgnoresMerges(vocab->pre);
  return Bpe::FromMerges(std::move(vocab->tokens), merges, options);
}

absl::StatusOr<Bpe> ScoreModel(BytePairVocab* vocab) {
  std::vector<bool> mergeable(vocab->tokens.size());
  for (size_t id = 0; id < mergeable.size(); ++id) {
    const GgufTokenType type = TypeOf(*vocab, id);
    mergeable[id] = type == GgufTokenType::kNormal || type == GgufTokenType::kUserDefined;
  }
  BpeOptions options;
  options.byte_fallback = true;
  options.fuse_unk = true;
  options.unk = vocab->unk.value_or(0);
  return Bpe::FromScores(std::move(vocab->tokens), vocab->scores, mergeable, options);
}

void ListAddedTokens(const BytePairVocab& vocab, BpeTokenizerParts* parts) {
  for (size_t id = 0; id < vocab.tokens.size(); ++id) {
    const GgufTokenType type = TypeOf(vocab, id);
    if (type != GgufTokenType::kControl && type != GgufTokenType::kUserDefined) continue;
    AddedToken token;
    token.id = static_cast<int32_t>(id);
    token.content = vocab.tokens[id];
    token.special = type == GgufTokenType::kControl;
    parts->added.push_back(std::move(token));
  }
}

}  // namespace

bool ByteLevelIgnoresMerges(absl::string_view pre) {
  return pre == "llama-bpe" || pre == "llama3" || pre == "llama-v3";
}

absl::StatusOr<std::unique_ptr<Tokenizer>> TokenizerFromParts(BytePairVocab vocab) {
  RETURN_IF_ERROR(CheckSizes(vocab));
  BpeTokenizerParts parts;
  ListAddedTokens(vocab, &parts);
  bool add_bos;  // when the file does not say
  if (vocab.model == "gpt2") {
    parts.byte_level = true;
    ASSIGN_OR_RETURN(parts.pre_tokenizer, PreTokenizerNamed(vocab.pre));
    // GGUF does not record normalisers; this family's own tokenizer.json has NFC.
    if (vocab.pre == "qwen2") parts.normalizer.AddForm(UnicodeForm::kNfc);
    ASSIGN_OR_RETURN(parts.bpe, ByteLevelModel(&vocab));
    add_bos = ByteLevelIgnoresMerges(vocab.pre);  // the same family
  } else if (vocab.model == "llama") {
    const bool prefix = vocab.add_space_prefix.value_or(true);
    if (prefix) parts.normalizer.AddPrepend(std::string(kSpaceMark));
    parts.normalizer.AddReplace(" ", std::string(kSpaceMark));
    ASSIGN_OR_RETURN(parts.bpe, ScoreModel(&vocab));
    parts.decode_style = {/*strip_leading_space=*/prefix, /*byte_fallback=*/true};
    add_bos = true;
  } else {
    return absl::UnimplementedError(absl::StrCat("tokenizer.ggml.model '", vocab.model,
                                                 "' is not supported; 'gpt2' and 'llama' are"));
  }
  parts.bos_id = vocab.bos;
  if (vocab.eos) parts.eos_ids.push_back(*vocab.eos);
  for (int32_t id : vocab.more_eos) {
    if (std::find(parts.eos_ids.begin(), parts.eos_ids.end(), id) == parts.eos_ids.end()) {
      parts.eos_ids.push_back(id);
    }
  }
  if (vocab.add_bos.value_or(add_bos) && vocab.bos) parts.prefix_ids = {*vocab.bos};
  if (vocab.add_eos.value_or(false) && vocab.eos) parts.suffix_ids = {*vocab.eos};
  return MakeBpeTokenizer(std::move(parts));
}

}  // namespace eventide
