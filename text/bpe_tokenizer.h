// The one Tokenizer there is: added tokens, normaliser, pre-tokenizer and byte-pair merges put
// together as Hugging Face's tokenizers do. The readers fill in a BpeTokenizerParts each from their
// own file.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer.h"

namespace eventide {

struct BpeTokenizerParts {
  Bpe bpe;
  bool byte_level = false;  // how tokens are spelled; else SentencePiece's way
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  // Their ids may lie in or behind the vocabulary; each replaces what the vocabulary has at its id.
  std::vector<AddedToken> added;
  std::vector<int32_t> prefix_ids, suffix_ids;
  std::optional<int32_t> bos_id;
  std::vector<int32_t> eos_ids;
  DecodeStyle decode_style;
  bool match_added = true;  // false: added tokens are never looked for in the text
};

// Refuses ids out of range and added tokens that are far behind the vocabulary.
absl::StatusOr<std::unique_ptr<Tokenizer>> MakeBpeTokenizer(BpeTokenizerParts parts);

}  // namespace eventide
