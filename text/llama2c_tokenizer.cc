#include "text/llama2c_tokenizer.h"

#include <cstring>
#include <fstream>

#include "core/status.h"
#include "text/bpe_tokenizer.h"

namespace eventide {
namespace {

constexpr int kMinVocab = 259;  // three special tokens and 256 bytes
constexpr int kMaxVocab = 1 << 20;

uint32_t LittleEndian(const char* bytes) {
  uint32_t value = 0;
  for (int i = 3; i >= 0; --i) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

struct Entries {
  std::vector<std::string> tokens;
  std::vector<float> scores;
};

absl::StatusOr<Entries> ReadEntries(std::istream& file, int vocab_size) {
  Entries entries;
  char header[8];
  if (!file.read(header, 4)) return absl::InvalidArgumentError("the file has no header");
  for (int id = 0; id < vocab_size; ++id) {
    if (!file.read(header, 8)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the file ends before token ", id, " of ", vocab_size));
    }
    const uint32_t score_bits = LittleEndian(header), length = LittleEndian(header + 4);
    if (length > Bpe::kMaxScoredTokenBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("token ", id, " has ", length, " bytes; is this a tokenizer of llama2.c?"));
    }
    float score;
    std::memcpy(&score, &score_bits, sizeof(score));
    std::string token(length, '\0');
    if (length > 0 && !file.read(token.data(), length)) {
      return absl::InvalidArgumentError(absl::StrCat("the file ends inside token ", id));
    }
    entries.scores.push_back(score);
    entries.tokens.push_back(std::move(token));
  }
  if (file.peek() != std::char_traits<char>::eof()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the file has more than the model's ", vocab_size, " tokens"));
  }
  return entries;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Read(std::istream& file, int vocab_size) {
  if (vocab_size < kMinVocab || vocab_size > kMaxVocab) {
    return absl::InvalidArgumentError(absl::StrCat("a vocabulary of ", vocab_size,
                                                   " tokens; between ", kMinVocab, " and ",
                                                   kMaxVocab, " are possible"));
  }
  ASSIGN_OR_RETURN(Entries entries, ReadEntries(file, vocab_size));
  std::vector<bool> mergeable(entries.tokens.size(), true);
  BpeOptions options;
  options.byte_fallback = true;
  options.unk = 0;
  BpeTokenizerParts parts;
  static constexpr const char* kNames[] = {"<unk>", "<s>", "</s>"};
  for (int32_t id = 0; id < 3; ++id) {
    entries.tokens[static_cast<size_t>(id)] = kNames[id];
    AddedToken token;
    token.id = id;
    token.content = kNames[id];
    parts.added.push_back(token);
  }
  for (int id = 0; id < kMinVocab; ++id) {
    mergeable[static_cast<size_t>(id)] = false;
    if (id >= 3 && FallbackByte(entries.tokens[static_cast<size_t>(id)]) != id - 3) {
      return absl::InvalidArgumentError(absl::StrCat("token ", id, " should stand for byte ",
                                                     id - 3, " but is '",
                                                     entries.tokens[static_cast<size_t>(id)], "'"));
    }
  }
  ASSIGN_OR_RETURN(parts.bpe,
                   Bpe::FromScores(std::move(entries.tokens), entries.scores, mergeable, options));
  parts.normalizer.AddPrepend(" ");
  parts.match_added = false;
  parts.prefix_ids = {1};
  parts.bos_id = 1;
  parts.eos_ids = {2, 1};
  parts.decode_style = {/*strip_leading_space=*/true, /*byte_fallback=*/true};
  return MakeBpeTokenizer(std::move(parts));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> TokenizerFromLlama2c(const std::string& path,
                                                                int vocab_size) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat(path, " could not be opened"));
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Read(file, vocab_size);
  if (tokenizer.ok()) return tokenizer;
  return absl::Status(tokenizer.status().code(),
                      absl::StrCat(path, ": ", tokenizer.status().message()));
}

}  // namespace eventide
