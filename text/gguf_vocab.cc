// BytePairVocabFromGguf: metadata values to plain ones.
#include <limits>

#include "core/status.h"
#include "text/bpe.h"
#include "text/gguf_tokenizer.h"

namespace eventide {
namespace {

std::string Key(absl::string_view name) {
  return absl::StrCat("tokenizer.ggml.", name);
}

absl::Status WrongType(absl::string_view name, absl::string_view wanted) {
  return absl::InvalidArgumentError(absl::StrCat(Key(name), " should be ", wanted));
}

// Absent: nothing.
absl::StatusOr<std::optional<int32_t>> TokenIdValue(const GgufFile& file, absl::string_view name) {
  if (file.Find(Key(name)) == nullptr) return std::optional<int32_t>();
  ASSIGN_OR_RETURN(int64_t id,
                   file.Integer(Key(name), 0, static_cast<int64_t>(Bpe::kMaxTokens) - 1));
  return std::optional<int32_t>(static_cast<int32_t>(id));
}

absl::StatusOr<std::optional<bool>> Flag(const GgufFile& file, absl::string_view name) {
  const GgufValue* value = file.Find(Key(name));
  if (value == nullptr) return std::optional<bool>();
  if (value->boolean() == nullptr) return WrongType(name, "true or false");
  return std::optional<bool>(*value->boolean());
}

// The array's elements, or an empty one when the key is absent.
absl::StatusOr<GgufValue::Array> ArrayValue(const GgufFile& file, absl::string_view name) {
  const GgufValue* value = file.Find(Key(name));
  if (value == nullptr) return GgufValue::Array();
  if (value->array() == nullptr) return WrongType(name, "an array");
  return *value->array();
}

}  // namespace

absl::StatusOr<BytePairVocab> BytePairVocabFromGguf(const GgufFile& file) {
  BytePairVocab vocab;
  ASSIGN_OR_RETURN(vocab.model, file.Text(Key("model")));
  if (file.Find(Key("pre")) != nullptr) {
    ASSIGN_OR_RETURN(vocab.pre, file.Text(Key("pre")));
  }
  ASSIGN_OR_RETURN(vocab.tokens, file.Texts(Key("tokens")));
  if (file.Find(Key("merges")) != nullptr) {
    ASSIGN_OR_RETURN(vocab.merges, file.Texts(Key("merges")));
  }
  ASSIGN_OR_RETURN(const GgufValue::Array scores, ArrayValue(file, "scores"));
  for (const GgufValue& score : scores) {
    if (!score.number()) return WrongType("scores", "an array of numbers");
    vocab.scores.push_back(static_cast<float>(*score.number()));
  }
  ASSIGN_OR_RETURN(const GgufValue::Array types, ArrayValue(file, "token_type"));
  for (const GgufValue& type : types) {
    const std::optional<int64_t> value = type.integer();
    if (!value || *value < 0 || *value > 255) {
      return WrongType("token_type", "an array of small integers");
    }
    vocab.types.push_back(static_cast<int32_t>(*value));
  }
  ASSIGN_OR_RETURN(vocab.bos, TokenIdValue(file, "bos_token_id"));
  ASSIGN_OR_RETURN(vocab.eos, TokenIdValue(file, "eos_token_id"));
  ASSIGN_OR_RETURN(vocab.unk, TokenIdValue(file, "unknown_token_id"));
  for (const char* name : {"eot_token_id", "eom_token_id"}) {
    ASSIGN_OR_RETURN(std::optional<int32_t> id, TokenIdValue(file, name));
    if (id) vocab.more_eos.push_back(*id);
  }
  ASSIGN_OR_RETURN(vocab.add_bos, Flag(file, "add_bos_token"));
  ASSIGN_OR_RETURN(vocab.add_eos, Flag(file, "add_eos_token"));
  ASSIGN_OR_RETURN(vocab.add_space_prefix, Flag(file, "add_space_prefix"));
  return vocab;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> TokenizerFromGguf(const GgufFile& file) {
  absl::StatusOr<BytePairVocab> vocab = BytePairVocabFromGguf(file);
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer =
      vocab.ok() ? TokenizerFromParts(*std::move(vocab)) : vocab.status();
  if (tokenizer.ok()) return tokenizer;
  return absl::Status(tokenizer.status().code(),
                      absl::StrCat(file.path(), ": ", tokenizer.status().message()));
}

}  // namespace eventide
