// The strings that scripts/goldens/tokenizer_goldens.py gave to Hugging Face's tokenizers, built
// again from the recipe it stored, and the hashes it stored of the results.
#pragma once

#include <cstdint>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "tests/support/test.h"

namespace eventide {

inline std::string ReadWholeFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline nlohmann::json TokenizerGolden(const std::string& name) {
  return nlohmann::json::parse(
      ReadWholeFile(SourceFile("tests/golden/tokenizers/" + name + ".json")));
}

// splitmix64: advances *state and returns the next value.
inline uint64_t NextRandom(uint64_t* state) {
  *state += 0x9E3779B97F4A7C15u;
  uint64_t z = *state;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// The generated strings, made of the atoms in corpus.json.
inline std::vector<std::string> GeneratedStrings() {
  const nlohmann::json corpus = TokenizerGolden("corpus");
  const auto atoms = corpus["atoms"].get<std::vector<std::string>>();
  std::vector<std::string> strings;
  for (uint64_t index = 0; index < corpus["strings"].get<uint64_t>(); ++index) {
    uint64_t state = index;
    const uint64_t count = 1 + NextRandom(&state) % 24;
    std::string text;
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t value = NextRandom(&state);
      const uint64_t kind = (value >> 32) % 64;
      const uint64_t times = kind == 0 ? 1 + (value >> 40) % 40 : kind < 4 ? 2 : 1;
      for (uint64_t k = 0; k < times; ++k) text += atoms[value % atoms.size()];
    }
    strings.push_back(text);
  }
  return strings;
}

// Lines of sonnets and the turns of two prompt sets; empty when the data are not there.
inline std::vector<std::string> PromptStrings() {
  std::vector<std::string> strings;
  const auto sonnets = TestData("prompts/llmperf_sonnet.txt");
  if (!sonnets) return strings;
  auto lines = [](const std::string& text, auto use) {
    for (size_t begin = 0; begin <= text.size();) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      if (end > begin) use(text.substr(begin, end - begin));
      begin = end + 1;
    }
  };
  lines(ReadWholeFile(*sonnets), [&](const std::string& line) { strings.push_back(line); });
  for (const char* name :
       {"prompts/mt_bench_question.jsonl", "prompts/spec_bench_question.jsonl"}) {
    const auto path = TestData(name);
    if (!path) return {};
    lines(ReadWholeFile(*path), [&](const std::string& line) {
      const nlohmann::json question = nlohmann::json::parse(line);
      for (const auto& turn : question["turns"]) {
        if (!turn.get<std::string>().empty()) strings.push_back(turn);
      }
    });
  }
  return strings;
}

// FNV-1a over the lists of a group: each list's length, then its values, as 32-bit little-endian.
class GroupHasher {
 public:
  template <typename Values>
  void Add(const Values& values) {
    Mix(static_cast<uint32_t>(values.size()));
    for (const auto& value : values) Mix(static_cast<uint32_t>(value));
    if (++lists_ % kGroup == 0) Close();
  }
  void AddText(const std::string& text) { Add(std::vector<uint8_t>(text.begin(), text.end())); }
  std::vector<std::string> Finish() {
    if (lists_ % kGroup != 0) Close();
    return hashes_;
  }

 private:
  static constexpr size_t kGroup = 16;
  void Mix(uint32_t value) {
    for (int i = 0; i < 4; ++i) hash_ = (hash_ ^ (value >> (8 * i) & 0xFF)) * 0x100000001B3u;
  }
  void Close() {
    hashes_.push_back(absl::StrFormat("%016x", hash_));
    hash_ = kStart;
  }

  static constexpr uint64_t kStart = 0xCBF29CE484222325u;
  uint64_t hash_ = kStart;
  size_t lists_ = 0;
  std::vector<std::string> hashes_;
};

}  // namespace eventide
