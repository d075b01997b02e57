// The readers of tokenizer files: llama2.c's form against known ids, and files that are wrong.
#include <algorithm>
#include <cstring>
#include <filesystem>

#include "tests/support/tiny_tokenizer.h"
#include "tests/support/tokenizer_corpus.h"
#include "text/hf_tokenizer.h"
#include "text/llama2c_tokenizer.h"
#include "text/regex.h"
#include "text/stream_decoder.h"

namespace eventide {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<int32_t>;

// A folder of this test's own, removed at the end.
class Folder {
 public:
  explicit Folder(const std::string& name) : path_(std::string(EVENTIDE_BINARY_ROOT) + "/" + name) {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string Write(const std::string& name, const std::string& bytes) const {
    const std::string path = path_ + "/" + name;
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST_CASE("the tokenizer of stories260K decodes the published ids and encodes the text back") {
  const auto path = TestData("models/tok512.bin");
  const auto golden = TestData("models/stories260K_greedy_ids_fp64.json");
  const auto story = TestData("models/stories260K_greedy_256_llama2c.txt");
  if (!path || !golden || !story) return Skip("no models/tok512.bin; set EVENTIDE_TEST_DATA");
  const auto tokenizer = TokenizerFromLlama2c(*path, 512);
  INFO(tokenizer.status().ToString());
  REQUIRE(tokenizer.ok());
  Json json = Json::parse(ReadWholeFile(*golden));
  if (json.is_object()) json = json.contains("ids") ? json["ids"] : json["tokens"];
  const auto ids = json.get<Ids>();
  const std::string text = *(*tokenizer)->Decode(ids, true);
  std::string expected = ReadWholeFile(*story);
  while (!expected.empty() && expected.back() == '\n') expected.pop_back();
  REQUIRE(expected.substr(0, text.size()) == text);
  REQUIRE(text.size() > 500);
  // A model need not write a text the way the tokenizer would, but the text comes back.
  const Ids again = *(*tokenizer)->Encode(text, true);
  REQUIRE(again[0] == 1);
  REQUIRE(*(*tokenizer)->Decode(again, true) == text);
  REQUIRE((*tokenizer)->eos_ids() == Ids{2, 1});
}

// What llama2.c does, in its own quadratic way: the best-scoring neighbours merge until none do.
Ids Quadratic(const std::vector<std::string>& tokens, const std::vector<float>& scores,
              const std::string& text) {
  auto find = [&](const std::string& token) {
    for (size_t i = 259; i < tokens.size(); ++i) {
      if (tokens[i] == token) return static_cast<int32_t>(i);
    }
    return -1;
  };
  Ids ids = {1, find(" ")};
  for (size_t i = 0; i < text.size();) {
    size_t n = 1;
    while (i + n < text.size() && (text[i + n] & 0xC0) == 0x80 && n < 4) ++n;
    const int32_t id = find(text.substr(i, n));
    if (id >= 0) ids.push_back(id);
    for (size_t k = 0; id < 0 && k < n; ++k) {
      ids.push_back(static_cast<unsigned char>(text[i + k]) + 3);
    }
    i += n;
  }
  while (true) {
    float best = -1e10f;
    int32_t best_id = -1;
    size_t best_at = 0;
    for (size_t i = 1; i + 1 < ids.size(); ++i) {
      if (ids[i] < 259 || ids[i + 1] < 259) continue;
      const int32_t id =
          find(tokens[static_cast<size_t>(ids[i])] + tokens[static_cast<size_t>(ids[i + 1])]);
      if (id >= 0 && scores[static_cast<size_t>(id)] > best) {
        best = scores[static_cast<size_t>(id)];
        best_id = id;
        best_at = i;
      }
    }
    if (best_id < 0) return ids;
    ids[best_at] = best_id;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best_at) + 1);
  }
}

TEST_CASE("llama2.c's form gives the ids of llama2.c's own algorithm") {
  const auto path = TestData("models/tok512.bin");
  if (!path) return Skip("no models/tok512.bin; set EVENTIDE_TEST_DATA");
  const auto tokenizer = TokenizerFromLlama2c(*path, 512);
  REQUIRE(tokenizer.ok());
  const std::string bytes = ReadWholeFile(*path);
  std::vector<std::string> tokens;
  std::vector<float> scores;
  for (size_t at = 4; at < bytes.size();) {
    float score;
    uint32_t length;
    std::memcpy(&score, &bytes[at], 4);
    std::memcpy(&length, &bytes[at + 4], 4);
    tokens.push_back(bytes.substr(at + 8, length));
    scores.push_back(score);
    at += 8 + length;
  }
  REQUIRE(tokens.size() == 512);
  std::vector<std::string> texts = GeneratedStrings();
  texts.resize(400);
  for (const std::string& prompt : PromptStrings()) {
    if (prompt.size() < 200 && texts.size() < 700) texts.push_back(prompt);
  }
  for (std::string text : texts) {
    text.erase(std::remove(text.begin(), text.end(), '\0'), text.end());  // ends a text there
    if (text.size() > 300 || text.empty()) continue;
    INFO(text);
    REQUIRE(*(*tokenizer)->Encode(text, true) == Quadratic(tokens, scores, text));
  }
}

TEST_CASE("llama2.c files that are cut short, too long or something else are refused") {
  const auto path = TestData("models/tok512.bin");
  if (!path) return Skip("no models/tok512.bin; set EVENTIDE_TEST_DATA");
  const Folder folder("llama2c_readers_test");
  const std::string good = ReadWholeFile(*path);
  for (size_t length : {size_t{0}, size_t{3}, size_t{4}, size_t{11}, good.size() - 1}) {
    REQUIRE_FALSE(TokenizerFromLlama2c(folder.Write("t", good.substr(0, length)), 512).ok());
  }
  REQUIRE_FALSE(TokenizerFromLlama2c(folder.Write("t", good + "x"), 512).ok());
  REQUIRE_FALSE(TokenizerFromLlama2c(*path, 511).ok());
  REQUIRE_FALSE(TokenizerFromLlama2c(*path, 513).ok());
  for (int size : {-1, 0, 258, 1 << 30}) REQUIRE_FALSE(TokenizerFromLlama2c(*path, size).ok());
  REQUIRE_FALSE(TokenizerFromLlama2c(folder.path() + "/none", 512).ok());
  REQUIRE_FALSE(TokenizerFromLlama2c(folder.Write("t", std::string(5000, '\xFF')), 512).ok());
}

// A small tokenizer.json with a template for BOS.
Json SmallJson() {
  Json vocab = {{"a", 0}, {"b", 1}, {"ab", 2}, {ByteLevelName(' '), 3}};
  return {{"added_tokens",
           {{{"id", 4}, {"content", "<s>"}, {"special", true}},
            {{"id", 6}, {"content", "</s>"}, {"special", true}}}},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"post_processor",
           {{"type", "TemplateProcessing"},
            {"single", {{{"SpecialToken", {{"id", "<s>"}}}}, {{"Sequence", {{"id", "A"}}}}}},
            {"special_tokens", {{"<s>", {{"ids", {4}}}}}}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"a b"}}}}};
}

bool Refused(const Json& json, const std::string& word) {
  const auto tokenizer = TokenizerFromHfJson(json.dump(), "small.json");
  if (tokenizer.ok()) return false;
  INFO(tokenizer.status().ToString());
  CHECK(std::string(tokenizer.status().message()).find(word) != std::string::npos);
  CHECK(std::string(tokenizer.status().message()).find("small.json") != std::string::npos);
  return true;
}

TEST_CASE("a small tokenizer.json is read, gaps between ids included") {
  const auto tokenizer = TokenizerFromHfJson(SmallJson().dump(), "small.json");
  INFO(tokenizer.status().ToString());
  REQUIRE(tokenizer.ok());
  REQUIRE(*(*tokenizer)->Encode("ab a</s>", true) == Ids{4, 2, 3, 0, 6});
  REQUIRE((*tokenizer)->vocab_size() == 7);
  REQUIRE(*(*tokenizer)->Decode(Ids{4, 2, 5, 0}, true) == "aba");  // 5 is an id without a token
  REQUIRE((*tokenizer)->bos_id() == 4);
  REQUIRE(*(*tokenizer)->Encode("xyz", false) == Ids{});  // no unknown token: left out
}

TEST_CASE("what a tokenizer.json asks for and is not known is refused by name") {
  struct Change {
    const char* pointer;
    Json value;
    const char* word;
  };
  const std::vector<Change> changes = {
      {"/model/type", "Unigram", "Unigram"},
      {"/model/type", 7, "type"},
      {"/model/vocab", Json::array(), "vocab"},
      {"/model/vocab/a", 1, "both have id"},
      {"/model/vocab/a", -1, "id"},
      {"/model/vocab/a", 1.5, "id"},
      {"/model/vocab/a", 4000000000u, "id"},
      {"/model/merges", Json::object(), "merges"},
      {"/model/merges", {"ab"}, "ab"},
      {"/model/merges", Json::array({Json::array({"a", "a"})}), "'a' 'a'"},
      {"/model/merges", Json::array({Json::array({"a", "b", "c"})}), "pair"},
      {"/model/dropout", 0.1, "dropout"},
      {"/model/end_of_word_suffix", "</w>", "end_of_word_suffix"},
      {"/model/ignore_merges", "yes", "ignore_merges"},
      {"/normalizer", {{"type", "BertNormalizer"}}, "BertNormalizer"},
      {"/normalizer", {{"type", "Sequence"}}, "Sequence"},
      {"/pre_tokenizer", {{"type", "Whitespace"}}, "Whitespace"},
      {"/pre_tokenizer",
       {{"type", "Split"}, {"pattern", {{"Regex", "(a)\\1"}}}, {"behavior", "Isolated"}},
       "(a)\\1"},
      {"/pre_tokenizer",
       {{"type", "Split"}, {"pattern", {{"Regex", "a"}}}, {"behavior", "Contiguous"}},
       "Contiguous"},
      {"/decoder", {{"type", "WordPiece"}}, "WordPiece"},
      {"/post_processor", {{"type", "BertProcessing"}}, "BertProcessing"},
      {"/post_processor/special_tokens", Json::object(), "<s>"},
      {"/post_processor/special_tokens/<s>/ids", {99}, "99"},
      {"/added_tokens/0/id", 100000000, "id"},
      {"/added_tokens/0/id", 1000000, "1000000"},
      {"/added_tokens/0", "x", "id"},
      {"/added_tokens", 3, "added_tokens"},
  };
  REQUIRE_FALSE(Refused(SmallJson(), ""));
  for (const Change& change : changes) {
    Json json = SmallJson();
    json[Json::json_pointer(change.pointer)] = change.value;
    INFO(change.pointer << " = " << change.value.dump());
    REQUIRE(Refused(json, change.word));
  }
  REQUIRE_FALSE(TokenizerFromHfJson("", "x").ok());
  REQUIRE_FALSE(TokenizerFromHfJson("[]", "x").ok());
  REQUIRE_FALSE(TokenizerFromHfPath("/nowhere/tokenizer.json").ok());
}

TEST_CASE("a damaged tokenizer.json never ends the process") {
  const std::string good = SmallJson().dump();
  uint64_t state = 1;
  int accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string bad = good;
    for (uint64_t n = 1 + NextRandom(&state) % 4; n > 0; --n) {
      const size_t at = NextRandom(&state) % bad.size();
      const uint64_t kind = NextRandom(&state) % 3;
      if (kind == 0) bad.erase(at, 1 + NextRandom(&state) % 8);
      if (kind == 1) bad[at] = static_cast<char>(NextRandom(&state));
      if (kind == 2) bad.insert(at, good.substr(NextRandom(&state) % good.size(), 12));
      if (bad.empty()) bad = "x";
    }
    const auto tokenizer = TokenizerFromHfJson(bad, "damaged");
    if (!tokenizer.ok()) continue;
    ++accepted;
    const Ids ids = *(*tokenizer)->Encode("ab <s>a", true);
    REQUIRE((*tokenizer)->Decode(ids, false).ok());
  }
  REQUIRE(accepted < 10000);
}

TEST_CASE("a folder's configuration names BOS and EOS") {
  const Folder folder("hf_folder_test");
  folder.Write("tokenizer.json", SmallJson().dump());
  folder.Write("tokenizer_config.json",
               R"({"bos_token": {"content": "<s>"}, "eos_token": "</s>", "add_bos_token": false})");
  folder.Write("generation_config.json", R"({"eos_token_id": [6, 2]})");
  const auto tokenizer = TokenizerFromHfPath(folder.path());
  INFO(tokenizer.status().ToString());
  REQUIRE(tokenizer.ok());
  REQUIRE((*tokenizer)->bos_id() == 4);
  REQUIRE((*tokenizer)->eos_ids() == Ids{6, 2});
  REQUIRE(*(*tokenizer)->Encode("a", true) == Ids{0});
  folder.Write("tokenizer_config.json", R"({"eos_token": "<none>"})");
  REQUIRE_FALSE(TokenizerFromHfPath(folder.path()).ok());
}

TEST_CASE("regular expressions outside the subset are refused and name themselves") {
  for (const char* pattern :
       {"",      "a*",      "(?:a|b*)",   "a+?",   "(ab)+",       "^a",     "a$",
        ".",     "(?<=a)b", "\\b",        "(?i)a", "[a",          "a)",     "(a",
        "\\",    "[b-a]",   "\\p{Latin}", "\\p",   "[[:alpha:]]", "a{2,1}", "a{999999}",
        "a{,3}", "[a&&b]",  "a**",        "\xFF"}) {
    const auto regex = Regex::Compile(pattern);
    INFO(pattern);
    REQUIRE_FALSE(regex.ok());
    REQUIRE(std::string(regex.status().message()).find(pattern) != std::string::npos);
  }
  REQUIRE_FALSE(Regex::Compile(std::string(100, '(') + "a" + std::string(100, ')')).ok());
}

TEST_CASE("regular expressions prefer the first alternative and give back what they must") {
  auto match = [](const char* pattern, const char* text) {
    const auto regex = Regex::Compile(pattern);
    INFO(regex.status().ToString());
    REQUIRE(regex.ok());
    const size_t end = regex->MatchAt(text, 0);
    return end == Regex::kNoMatch ? -1 : static_cast<int>(end);
  };
  REQUIRE(match("a|ab", "ab") == 1);
  REQUIRE(match("a*ab", "aaab") == 4);
  REQUIRE(match("a++ab", "aaab") == -1);
  REQUIRE(match("(?:ab)?a(?=c)", "abac") == 3);
  REQUIRE(match("\\s+(?!\\S)", "   x") == 2);
  REQUIRE(match("a{2,3}", "aaaa") == 3);
  REQUIRE(match("a{2}", "a") == -1);
  REQUIRE(match("(?i:'s)", "'S") == 2);
  REQUIRE(match("[^\\S\\n]+", " \t\n") == 2);
  REQUIRE(match("\\p{Lu}\\p{^Lu}[a\\-\\]]+", "Aa-]b") == 4);
}

}  // namespace
}  // namespace eventide
