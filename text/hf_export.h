// A GGUF vocabulary as the files that Hugging Face's tokenizers and transformers load, and that
// TokenizerFromHfPath reads back: equal ids, equal text.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "text/gguf_tokenizer.h"

namespace eventide {

struct TokenizerFile {
  std::string name, content;
};

// tokenizer.json, tokenizer_config.json and generation_config.json. `chat_template` may be empty.
// Refuses what tokenizer.json cannot say, such as two tokens that are spelled alike.
absl::StatusOr<std::vector<TokenizerFile>> HfTokenizerFiles(const BytePairVocab& vocab,
                                                            const std::string& chat_template);

}  // namespace eventide
