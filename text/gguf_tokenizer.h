// Tokenizers from the metadata of GGUF files (tokenizer.ggml.*). The file's reader is elsewhere:
// this takes the values.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "formats/gguf.h"
#include "text/tokenizer.h"

namespace eventide {

// The values of tokenizer.ggml.token_type.
enum class GgufTokenType : int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

struct BytePairVocab {
  std::string model = "gpt2";       // tokenizer.ggml.model: "gpt2" (byte-level) or "llama" (scores)
  std::string pre = "default";      // tokenizer.ggml.pre, of "gpt2" only
  std::vector<std::string> tokens;  // by id
  std::vector<std::string> merges;  // "left right", of "gpt2"
  std::vector<float> scores;        // of "llama"
  std::vector<int32_t> types;       // GgufTokenType; empty: all normal
  std::optional<int32_t> bos, eos, unk;
  std::vector<int32_t> more_eos;         // such as tokenizer.ggml.eot_token_id
  std::optional<bool> add_bos, add_eos;  // absent: as the model's kind has it
  std::optional<bool> add_space_prefix;  // of "llama"; absent: true
};

// Whether pieces that are tokens are taken whole, by the name of the pre-tokenizer.
bool ByteLevelIgnoresMerges(absl::string_view pre);

// Control tokens are special and user-defined ones are added; both are found in text.
absl::StatusOr<std::unique_ptr<Tokenizer>> TokenizerFromParts(BytePairVocab vocab);

// The tokenizer.ggml.* values of a file, checked for type and range.
absl::StatusOr<BytePairVocab> BytePairVocabFromGguf(const GgufFile& file);
absl::StatusOr<std::unique_ptr<Tokenizer>> TokenizerFromGguf(const GgufFile& file);

}  // namespace eventide
