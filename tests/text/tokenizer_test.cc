// Tokenizers made of a few tokens: what merges, templates, special tokens and bad input do.
#include <chrono>

#include "tests/support/tiny_tokenizer.h"

namespace eventide {
namespace {

using Ids = std::vector<int32_t>;

Ids Encoded(const Tokenizer& tokenizer, absl::string_view text, bool bos = false) {
  auto ids = tokenizer.Encode(text, bos);
  REQUIRE(ids.ok());
  return *ids;
}

std::string Decoded(const Tokenizer& tokenizer, const Ids& ids, bool skip_special = true) {
  auto text = tokenizer.Decode(ids, skip_special);
  REQUIRE(text.ok());
  return *text;
}

bool Refused(BytePairVocab vocab, const std::string& word) {
  const auto tokenizer = TokenizerFromParts(std::move(vocab));
  if (tokenizer.ok()) return false;
  INFO(tokenizer.status().ToString());
  CHECK(std::string(tokenizer.status().message()).find(word) != std::string::npos);
  return true;
}

TEST_CASE("byte-level merges follow their order and stay within pieces") {
  const auto tokenizer = MakeTokenizer(TinyByteLevelVocab());
  REQUIRE(Encoded(*tokenizer, "hello") == Ids{259});
  REQUIRE(Encoded(*tokenizer, "hell w") == Ids{258, 260});
  REQUIRE(Encoded(*tokenizer, "lll") == Ids{257, 'l'});  // the leftmost of equals first
  REQUIRE(Encoded(*tokenizer, "").empty());
  REQUIRE(Encoded(*tokenizer, "h e") == Ids{'h', ' ', 'e'});
}

TEST_CASE("the template's BOS is added only on request and special tokens are found in text") {
  const auto tokenizer = MakeTokenizer(TinyByteLevelVocab());
  REQUIRE(Encoded(*tokenizer, "he", true) == Ids{261, 256});
  REQUIRE(Encoded(*tokenizer, "", true) == Ids{261});
  REQUIRE(Encoded(*tokenizer, "he<|end|>he<|en") == Ids{256, 262, 256, '<', '|', 'e', 'n'});
  REQUIRE(tokenizer->TokenId("<|end|>") == 262);
  REQUIRE_FALSE(tokenizer->TokenId("<|none|>").has_value());
  REQUIRE(tokenizer->bos_id() == 261);
  REQUIRE(tokenizer->eos_ids() == Ids{262});
  REQUIRE(Decoded(*tokenizer, {261, 256, 262}) == "he");
  REQUIRE(Decoded(*tokenizer, {261, 256, 262}, false) == "<|bos|>he<|end|>");
}

TEST_CASE("an id outside the vocabulary is refused by its number") {
  const auto tokenizer = MakeTokenizer(TinyByteLevelVocab());
  REQUIRE(tokenizer->vocab_size() == 263);
  for (int32_t id : {263, -1, 1 << 30}) {
    const auto text = tokenizer->Decode({'a', id}, true);
    REQUIRE_FALSE(text.ok());
    REQUIRE(std::string(text.status().message()).find(std::to_string(id)) != std::string::npos);
    REQUIRE_FALSE(tokenizer->IsValidId(id));
  }
}

TEST_CASE("invalid UTF-8 is encoded as the replacement character, one for each maximal part") {
  const auto tokenizer = MakeTokenizer(TinyByteLevelVocab());
  const std::string bad =
      "a\xFF"
      "b\xE2\x82"
      "c\xF0\x9F\x98\xC0\xAF\xED\xA0\x80\xE2";
  const std::string good = Decoded(*tokenizer, Encoded(*tokenizer, bad));
  const std::string r = "\xEF\xBF\xBD";
  REQUIRE(good == "a" + r + "b" + r + "c" + r + r + r + r + r + r + r);
}

TEST_CASE("SentencePiece merges the best score first and falls back to bytes") {
  const auto tokenizer = MakeTokenizer(TinySentencePieceVocab());
  REQUIRE(Encoded(*tokenizer, "ab") == Ids{263});
  REQUIRE(Encoded(*tokenizer, "aba") == Ids{259, 260, 264});  // "ba" beats "ab"
  REQUIRE(Encoded(*tokenizer, "ab", true) == Ids{1, 263});
  REQUIRE(Encoded(*tokenizer, "\xC3\xA9") == Ids{259, 3 + 0xC3, 3 + 0xA9});
  REQUIRE(Encoded(*tokenizer, "").empty());
  // The text of a byte token is not that byte.
  REQUIRE(Encoded(*tokenizer, "<0x0A>").size() == 7);
  REQUIRE(Decoded(*tokenizer, {1, 263, 259, 260, 2}) == "ab a");
  REQUIRE(Decoded(*tokenizer, {3 + 0xC3, 3 + 0xA9}) == "\xC3\xA9");
  // A run that is not UTF-8 is replaced byte by byte, as Hugging Face's ByteFallback does.
  REQUIRE(Decoded(*tokenizer, {3 + 'x', 3 + 0xC3}) == "\xEF\xBF\xBD\xEF\xBF\xBD");
}

TEST_CASE("a megabyte of one letter is encoded in seconds, byte-level and SentencePiece alike") {
  BytePairVocab byte_level = TinyByteLevelVocab();
  for (size_t length = 1; length <= 64; length *= 2) {  // "aa", "aaaa", ... so that merges cascade
    const std::string part(length, 'a');
    byte_level.tokens.push_back(part + part);
    byte_level.types.push_back(static_cast<int32_t>(GgufTokenType::kNormal));
    byte_level.merges.push_back(part + " " + part);
  }
  for (BytePairVocab& vocab : std::vector<BytePairVocab>{byte_level, TinySentencePieceVocab()}) {
    const auto tokenizer = MakeTokenizer(vocab);
    for (const char* unit : {"a", "ab", " ", "\n", "1", "!", "\xF0\x9F\x98\x80"}) {
      std::string text;
      while (text.size() < 1000000) text += unit;
      const auto start = std::chrono::steady_clock::now();
      const Ids ids = Encoded(*tokenizer, text);
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      REQUIRE(Decoded(*tokenizer, ids) == text);
      // Quadratic work would take hours; sanitizers and a busy machine take their share.
      REQUIRE(took.count() < 60);
    }
  }
}

TEST_CASE("vocabularies that contradict themselves are refused") {
  const BytePairVocab good = TinyByteLevelVocab();
  REQUIRE_FALSE(Refused(good, ""));
  BytePairVocab bad = good;
  bad.tokens.clear();
  REQUIRE(Refused(bad, "tokens"));
  bad = good;
  bad.types.pop_back();
  REQUIRE(Refused(bad, "token_type"));
  bad = good;
  bad.bos = 263;
  REQUIRE(Refused(bad, "bos"));
  bad = good;
  bad.more_eos = {-5};
  REQUIRE(Refused(bad, "EOS"));
  bad = good;
  bad.merges.push_back("he o");
  REQUIRE(Refused(bad, "'he' 'o'"));
  for (const char* merge : {"", " ", "a", "a ", "  "}) {
    bad = good;
    bad.merges.push_back(merge);
    REQUIRE(Refused(bad, "merge"));
  }
  bad = good;
  bad.pre = "some-new-model";
  REQUIRE(Refused(bad, "some-new-model"));
  bad = good;
  bad.model = "t5";
  REQUIRE(Refused(bad, "t5"));
  bad = TinySentencePieceVocab();
  bad.scores.pop_back();
  REQUIRE(Refused(bad, "scores"));
  bad = TinySentencePieceVocab();
  bad.scores[5] = std::numeric_limits<float>::quiet_NaN();
  REQUIRE(Refused(bad, "not a number"));
}

}  // namespace
}  // namespace eventide
