// Exact ids and exact text against Hugging Face's tokenizers, for real vocabularies. The expected
// values and the corpus come from scripts/goldens/tokenizer_goldens.py.
#include <algorithm>
#include <cstring>
#include <deque>
#include <set>

#include "formats/gguf.h"
#include "tests/support/models.h"
#include "tests/support/tokenizer_corpus.h"
#include "text/gguf_tokenizer.h"
#include "text/hf_export.h"
#include "text/hf_tokenizer.h"
#include "text/pre_tokenizer.h"
#include "text/regex.h"
#include "text/stream_decoder.h"
#include "text/utf8.h"

namespace eventide {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<int32_t>;

void RequireSame(const std::vector<std::string>& got, const Json& expected, const char* what) {
  REQUIRE(got.size() == expected.size());
  size_t wrong = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] == expected[i].get<std::string>()) continue;
    if (++wrong <= 5)
      UNSCOPED_INFO(what << " differ within strings " << 16 * i << " to " << 16 * i + 15);
  }
  REQUIRE(wrong == 0);
}

std::string Streamed(const Tokenizer& tokenizer, const Ids& ids) {
  StreamDecoder decoder(&tokenizer);
  std::string text;
  for (int32_t id : ids) {
    auto part = decoder.Push(id);
    REQUIRE(part.ok());
    REQUIRE(IsValidUtf8(*part));
    text += *part;
  }
  return text + decoder.Finish();
}

// As random_ids in the script.
Ids RandomIds(uint64_t index, uint64_t vocab) {
  uint64_t state = index + 1000000;
  const uint64_t count = 1 + NextRandom(&state) % 12;
  Ids ids;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t value = NextRandom(&state);
    ids.push_back(static_cast<int32_t>(value % ((value >> 40) % 4 == 0 ? vocab : 300)));
  }
  return ids;
}

void CheckAgainstGolden(const Tokenizer& tokenizer, const std::string& name) {
  const Json golden = TokenizerGolden(name);
  GroupHasher ids_hash, text_hash, special_hash, random_hash, prompt_hash;
  const std::vector<std::string> strings = GeneratedStrings();
  REQUIRE(strings.size() >= 5000);
  for (size_t i = 0; i < strings.size(); ++i) {
    const auto ids = tokenizer.Encode(strings[i], /*add_special_bos=*/true);
    REQUIRE(ids.ok());
    if (i < golden["full"].size()) {
      INFO("string " << i << ": " << strings[i]);
      REQUIRE(*ids == golden["full"][i].get<Ids>());
    }
    ids_hash.Add(*ids);
    const auto text = tokenizer.Decode(*ids, /*skip_special=*/true);
    REQUIRE(text.ok());
    text_hash.AddText(*text);
    special_hash.AddText(*tokenizer.Decode(*ids, /*skip_special=*/false));
    INFO("string " << i << ": " << strings[i]);
    REQUIRE(Streamed(tokenizer, *ids) == *text);
  }
  RequireSame(ids_hash.Finish(), golden["ids"], "ids");
  RequireSame(text_hash.Finish(), golden["decoded"], "decoded texts");
  RequireSame(special_hash.Finish(), golden["decoded_with_special"], "texts with special tokens");
  for (uint64_t i = 0; i < 1000; ++i) {
    const Ids ids = RandomIds(i, static_cast<uint64_t>(tokenizer.vocab_size()));
    const auto text = tokenizer.Decode(ids, /*skip_special=*/true);
    REQUIRE(text.ok());
    REQUIRE(IsValidUtf8(*text));
    random_hash.AddText(*text);
    // Valid UTF-8 whatever the ids are; the same text for byte-level vocabularies.
    const std::string streamed = Streamed(tokenizer, ids);
    if (!tokenizer.decode_style().byte_fallback) REQUIRE(streamed == *text);
  }
  RequireSame(random_hash.Finish(), golden["random_decoded"], "decoded random ids");
  const std::vector<std::string> prompts = PromptStrings();
  if (prompts.empty()) return;
  for (const std::string& prompt : prompts) {
    prompt_hash.Add(*tokenizer.Encode(prompt, /*add_special_bos=*/true));
  }
  RequireSame(prompt_hash.Finish(), golden["prompt_ids"], "ids of prompts");
}

// `file` of the test data, with the changes that the golden file `name` records; null without data.
std::unique_ptr<Tokenizer> FromData(const std::string& file, const std::string& name) {
  const auto path = TestData("tokenizers/" + file);
  if (!path) {
    Skip("no tokenizers/" + file + "; configure with -DEVENTIDE_TEST_DATA");
    return nullptr;
  }
  Json json = Json::parse(ReadWholeFile(*path));
  const Json golden = TokenizerGolden(name);
  if (golden.contains("patch")) {
    for (const auto& [key, value] : golden["patch"].items()) {
      if (key == "model") {
        json[key].update(value);
      } else {
        json[key] = value;
      }
    }
  }
  auto tokenizer = TokenizerFromHfJson(json.dump(), name);
  INFO(tokenizer.status().ToString());
  REQUIRE(tokenizer.ok());
  return *std::move(tokenizer);
}

std::unique_ptr<Tokenizer> SmolLm2() {
  const auto path = SmolLm2Path();
  if (!path) return nullptr;
  auto file = GgufFile::Open(*path);
  REQUIRE(file.ok());
  auto tokenizer = TokenizerFromGguf(**file);
  INFO(tokenizer.status().ToString());
  REQUIRE(tokenizer.ok());
  return *std::move(tokenizer);
}

void CheckRoundTrip(const Tokenizer& tokenizer) {
  for (const std::string& text : GeneratedStrings()) {
    const auto decoded = tokenizer.Decode(*tokenizer.Encode(text, false), /*skip_special=*/false);
    REQUIRE(decoded.ok());
    REQUIRE(*decoded == text);
  }
}

TEST_CASE("the corpus is the one that the goldens were made from") {
  GroupHasher hasher;
  const std::vector<std::string> strings = GeneratedStrings();
  for (const std::string& text : strings) hasher.AddText(text);
  RequireSame(hasher.Finish(), TokenizerGolden("corpus")["text"], "texts");
  REQUIRE(std::set<std::string>(strings.begin(), strings.end()).size() >= 5000);
  const std::vector<std::string> prompts = PromptStrings();
  if (!prompts.empty()) REQUIRE(prompts.size() == TokenizerGolden("corpus")["prompts"]);
}

TEST_CASE("SmolLM2's tokenizer from GGUF metadata gives Hugging Face's ids and text") {
  if (auto tokenizer = SmolLm2()) CheckAgainstGolden(*tokenizer, "smollm2");
}

std::unique_ptr<Tokenizer> Exported(const BytePairVocab& vocab) {
  const auto files = HfTokenizerFiles(vocab, "");
  INFO(files.status().ToString());
  REQUIRE(files.ok());
  REQUIRE(files->at(0).name == "tokenizer.json");
  auto tokenizer = TokenizerFromHfJson(files->at(0).content, "exported");
  INFO(tokenizer.status().ToString());
  REQUIRE(tokenizer.ok());
  return *std::move(tokenizer);
}

TEST_CASE("SmolLM2's tokenizer exported from GGUF metadata gives Hugging Face's ids and text") {
  const auto path = SmolLm2Path();
  if (!path) return;
  const auto file = GgufFile::Open(*path);
  REQUIRE(file.ok());
  const auto vocab = BytePairVocabFromGguf(**file);
  REQUIRE(vocab.ok());
  CheckAgainstGolden(*Exported(*vocab), "smollm2");
}

// The pieces of a SentencePiece model, which is what GGUF files hold of one: field 1 of the
// message, again and again, with 1 the text, 2 the score as float and 3 the type, 1 where it is
// left out.
BytePairVocab SentencePieceVocab(const std::string& bytes) {
  BytePairVocab vocab;
  vocab.model = "llama";
  const auto number = [&](size_t* at) {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const unsigned char byte = static_cast<unsigned char>(bytes.at((*at)++));
      value |= uint64_t{byte & 127u} << shift;
      if (byte < 128) return value;
    }
  };
  for (size_t at = 0; at < bytes.size();) {
    const uint64_t tag = number(&at), size = number(&at);
    const size_t end = at + size;
    if (tag != (1 << 3 | 2)) break;  // what follows the pieces
    vocab.types.push_back(1);
    while (at < end) {
      const uint64_t field = number(&at);
      if (field == (1 << 3 | 2)) {
        const size_t length = number(&at);
        vocab.tokens.push_back(bytes.substr(at, length));
        at += length;
      } else if (field == (2 << 3 | 5)) {
        float score;
        std::memcpy(&score, bytes.data() + at, sizeof(score));
        vocab.scores.push_back(score);
        at += sizeof(score);
      } else {
        REQUIRE(field == 3 << 3);
        vocab.types.back() = static_cast<int32_t>(number(&at));
      }
    }
  }
  return vocab;
}

TEST_CASE("merges that are made of scores give the ids of Llama 2's own merges") {
  const auto path = TestData("tokenizers/llama2_tokenizer.model");
  if (!path)
    return Skip("no tokenizers/llama2_tokenizer.model; configure with -DEVENTIDE_TEST_DATA");
  BytePairVocab vocab = SentencePieceVocab(ReadWholeFile(*path));
  REQUIRE(vocab.tokens.size() == 32000);
  REQUIRE(vocab.scores.size() == 32000);
  vocab.unk = 0;
  vocab.bos = 1;
  vocab.eos = 2;
  const auto made = Exported(vocab), original = FromData("llama2_tokenizer.json", "llama2");
  // That file looks for its special tokens in normalised text, GGUF's readers in the text itself;
  // and it spells the tokens of no-break spaces with plain ones.
  size_t compared = 0;
  for (const std::string& text : GeneratedStrings()) {
    const auto names = {"<unk>", "<s>", "</s>", "\u00a0"};
    const auto holds = [&](const char* name) { return text.find(name) != std::string::npos; };
    if (std::any_of(names.begin(), names.end(), holds)) continue;
    const auto ids = original->Encode(text, true);
    ++compared;
    INFO(text);
    REQUIRE(made->Encode(text, true).value() == *ids);
    REQUIRE(made->Decode(*ids, true).value() == original->Decode(*ids, true).value());
  }
  CHECK(compared > 2500);
}

TEST_CASE("SmolLM2's tokenizer knows its special tokens and adds no BOS") {
  auto tokenizer = SmolLm2();
  if (!tokenizer) return;
  REQUIRE(tokenizer->vocab_size() == 49152);
  REQUIRE(tokenizer->bos_id() == 1);
  REQUIRE(tokenizer->eos_ids() == Ids{2});
  REQUIRE(tokenizer->TokenId("<|im_end|>") == 2);
  REQUIRE(tokenizer->prefix_ids().empty());
}

TEST_CASE("decoding gives back every text that a byte-level tokenizer encoded") {
  if (auto tokenizer = SmolLm2()) CheckRoundTrip(*tokenizer);
  if (auto tokenizer = FromData("phi2_gpt2bpe_tokenizer.json", "phi2")) CheckRoundTrip(*tokenizer);
}

TEST_CASE("Llama 2's tokenizer.json gives Hugging Face's ids and text") {
  if (auto t = FromData("llama2_tokenizer.json", "llama2")) CheckAgainstGolden(*t, "llama2");
}

TEST_CASE("phi-2's tokenizer.json gives Hugging Face's ids and text") {
  if (auto t = FromData("phi2_gpt2bpe_tokenizer.json", "phi2")) CheckAgainstGolden(*t, "phi2");
}

TEST_CASE("the forms of newer tokenizer.json files give Hugging Face's ids and text") {
  const std::string name =
      GENERATE(as<std::string>(), "phi2_llama3_form", "phi2_qwen2_form", "phi2_prefix_form",
               "llama2_metaspace_form", "llama2_metaspace_split_form");
  INFO(name);
  const char* file = name[0] == 'p' ? "phi2_gpt2bpe_tokenizer.json" : "llama2_tokenizer.json";
  if (auto tokenizer = FromData(file, name)) CheckAgainstGolden(*tokenizer, name);
}

TEST_CASE("regular expressions cut text as Oniguruma does") {
  const Json golden = TokenizerGolden("pre_tokenizers");
  const std::vector<std::string> strings = GeneratedStrings();
  for (const auto& [name, entry] : golden.items()) {
    INFO(name);
    PreTokenizer pre;
    for (const auto& pattern : entry["patterns"]) {
      auto regex = Regex::Compile(pattern.get<std::string>());
      INFO(regex.status().ToString());
      REQUIRE(regex.ok());
      pre.AddSplit(*std::move(regex), PreTokenizer::Keep::kIsolated);
    }
    std::vector<PreTokenizer> same = {pre};
    if (auto named = PreTokenizerNamed(name); named.ok()) same.push_back(*std::move(named));
    REQUIRE((name == "o200k" || same.size() == 2));
    for (const PreTokenizer& each : same) {
      GroupHasher hasher;
      for (const std::string& text : strings) {
        std::deque<std::string> arena;
        std::vector<PreTokenizer::Piece> pieces;
        each.Apply(text, true, &arena, &pieces);
        std::vector<size_t> lengths;
        for (const auto& piece : pieces) lengths.push_back(piece.text.size());
        hasher.Add(lengths);
      }
      RequireSame(hasher.Finish(), entry["pieces"], "pieces");
    }
  }
}

}  // namespace
}  // namespace eventide
