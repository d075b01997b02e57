// Hand-made vocabularies, so that tests of text need no files.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/test.h"
#include "text/bpe.h"
#include "text/gguf_tokenizer.h"

namespace eventide {

// Byte-level: id b is byte b, then 256 "he", 257 "ll", 258 "hell", 259 "hello", 260 " w", and the
// special tokens 261 "<|bos|>", 262 "<|end|>".
inline BytePairVocab TinyByteLevelVocab() {
  BytePairVocab vocab;
  vocab.pre = "gpt-2";
  for (int byte = 0; byte < 256; ++byte) {
    vocab.tokens.push_back(ByteLevelName(static_cast<uint8_t>(byte)));
  }
  const std::string space = ByteLevelName(' ');
  for (const auto& [left, right] : std::vector<std::pair<std::string, std::string>>{
           {"h", "e"}, {"l", "l"}, {"he", "ll"}, {"hell", "o"}, {space, "w"}}) {
    vocab.tokens.push_back(left + right);
    vocab.merges.push_back(left + " " + right);
  }
  vocab.types.assign(vocab.tokens.size(), static_cast<int32_t>(GgufTokenType::kNormal));
  for (const char* token : {"<|bos|>", "<|end|>"}) {
    vocab.tokens.push_back(token);
    vocab.types.push_back(static_cast<int32_t>(GgufTokenType::kControl));
  }
  vocab.bos = 261;
  vocab.eos = 262;
  vocab.add_bos = true;
  return vocab;
}

// SentencePiece: 0 unknown, 1 BOS, 2 EOS, 3 + b is byte b, then 259 "▁", 260 "a", 261 "b", 262
// "ab", 263 "▁ab", 264 "ba" (better than "ab").
inline BytePairVocab TinySentencePieceVocab() {
  BytePairVocab vocab;
  vocab.model = "llama";
  auto add = [&](const std::string& token, float score, GgufTokenType type) {
    vocab.tokens.push_back(token);
    vocab.scores.push_back(score);
    vocab.types.push_back(static_cast<int32_t>(type));
  };
  add("<unk>", 0, GgufTokenType::kUnknown);
  add("<s>", 0, GgufTokenType::kControl);
  add("</s>", 0, GgufTokenType::kControl);
  static constexpr char kHex[] = "0123456789ABCDEF";
  for (int byte = 0; byte < 256; ++byte) {
    add(std::string("<0x") + kHex[byte / 16] + kHex[byte % 16] + ">", 0, GgufTokenType::kByte);
  }
  const std::string mark = "\xE2\x96\x81";
  add(mark, -10, GgufTokenType::kNormal);
  add("a", -11, GgufTokenType::kNormal);
  add("b", -12, GgufTokenType::kNormal);
  add("ab", -2, GgufTokenType::kNormal);
  add(mark + "ab", -3, GgufTokenType::kNormal);
  add("ba", -1, GgufTokenType::kNormal);
  vocab.bos = 1;
  vocab.eos = 2;
  vocab.unk = 0;
  return vocab;
}

inline std::unique_ptr<Tokenizer> MakeTokenizer(BytePairVocab vocab) {
  auto tokenizer = TokenizerFromParts(std::move(vocab));
  INFO(tokenizer.status().ToString());
  REQUIRE(tokenizer.ok());
  return *std::move(tokenizer);
}

}  // namespace eventide
