// Reads llama2.c's tokenizer files: u32 max_token_length, then for each token f32 score, u32 length
// and the bytes, all little-endian. The vocabulary's size is not in the file; the model knows it.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "text/tokenizer.h"

namespace eventide {

// Ids 0, 1, 2 are unknown, BOS and EOS; 3 ... 258 are the byte tokens. A token may be named
// "<unk>",
// "<s>", "</s>", but these are never looked for in text, as in llama2.c. Generation ends at both
// BOS and EOS there.
absl::StatusOr<std::unique_ptr<Tokenizer>> TokenizerFromLlama2c(const std::string& path,
                                                                int vocab_size);

}  // namespace eventide
