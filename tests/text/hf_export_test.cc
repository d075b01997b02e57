// GGUF vocabularies written as Hugging Face's files and read back. (That real ones give Hugging
// Face's own ids is in hugging_face_test.cc.)
#include "text/hf_export.h"

#include <fstream>

#include "tests/support/temp_folder.h"
#include "tests/support/tiny_tokenizer.h"
#include "tests/support/tokenizer_corpus.h"
#include "text/chat_template.h"
#include "text/hf_tokenizer.h"

namespace eventide {
namespace {

// Writes and reads back; what it stands for must be the same in all that a model sees.
void CheckRoundTrip(const BytePairVocab& vocab) {
  const auto original = MakeTokenizer(vocab);
  const auto files = HfTokenizerFiles(vocab, "the template");
  INFO(files.status().ToString());
  REQUIRE(files.ok());
  const TempFolder folder;
  for (const TokenizerFile& file : *files) {
    std::ofstream(folder.path() + "/" + file.name) << file.content;
  }
  const auto loaded = TokenizerFromHfPath(folder.path());
  INFO(loaded.status().ToString());
  REQUIRE(loaded.ok());
  const Tokenizer& back = **loaded;
  CHECK(back.vocab_size() == original->vocab_size());
  CHECK(back.bos_id() == original->bos_id());
  CHECK(back.eos_ids() == original->eos_ids());
  CHECK(back.prefix_ids() == original->prefix_ids());
  CHECK(back.suffix_ids() == original->suffix_ids());
  for (int id = 0; id < original->vocab_size(); ++id) {
    REQUIRE(back.TokenBytes(id) == original->TokenBytes(id));
    REQUIRE(back.IsSpecial(id) == original->IsSpecial(id));
  }
  for (const std::string& text : GeneratedStrings()) {
    INFO(text);
    const auto ids = original->Encode(text, true);
    REQUIRE(back.Encode(text, true).value() == *ids);
    REQUIRE(back.Decode(*ids, true).value() == original->Decode(*ids, true).value());
  }
  CHECK(ReadChatTemplate(folder.path()).value() == "the template");
}

TEST_CASE("a byte-level vocabulary survives, whatever its pre-tokenizer") {
  for (const char* pre : {"gpt-2", "smollm", "llama-bpe", "qwen2", "default"}) {
    INFO(pre);
    BytePairVocab vocab = TinyByteLevelVocab();
    vocab.pre = pre;
    CheckRoundTrip(vocab);
  }
  BytePairVocab vocab = TinyByteLevelVocab();
  vocab.add_bos = false;
  vocab.add_eos = true;
  vocab.more_eos = {261};
  vocab.types[259] = static_cast<int32_t>(GgufTokenType::kUserDefined);
  CheckRoundTrip(vocab);
}

TEST_CASE("a vocabulary with scores survives as a list of merges") {
  CheckRoundTrip(TinySentencePieceVocab());
  BytePairVocab vocab = TinySentencePieceVocab();
  vocab.add_space_prefix = false;
  vocab.add_bos = false;
  CheckRoundTrip(vocab);
}

TEST_CASE("what tokenizer.json cannot say is refused by name") {
  BytePairVocab twice = TinyByteLevelVocab();
  twice.tokens[262] = "<|bos|>";
  const auto files = HfTokenizerFiles(twice, "");
  REQUIRE_FALSE(files.ok());
  CHECK(files.status().message().find("262") != absl::string_view::npos);
  BytePairVocab unknown = TinyByteLevelVocab();
  unknown.pre = "no-such";
  CHECK_FALSE(HfTokenizerFiles(unknown, "").ok());
}

}  // namespace
}  // namespace eventide
