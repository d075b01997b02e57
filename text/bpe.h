// Byte-pair encoding of one piece: a vocabulary, and merges ordered by rank. Byte-level
// vocabularies start from bytes, SentencePiece ones from characters; scores become ranks (equal
// scores, equal ranks).
//
// A piece of n symbols takes O(n log n): a heap of candidate merges and a linked list of symbols,
// the lowest rank first and the leftmost first among equals.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace eventide {

// GPT-2's printable names for bytes: the character that stands for `byte`, as UTF-8.
const std::string& ByteLevelName(uint8_t byte);
// The bytes that `token` names; false when a character of it names none.
bool ByteLevelBytes(absl::string_view token, std::string* bytes);

// The byte that a byte-fallback token such as "<0x0A>" stands for, or -1.
int FallbackByte(absl::string_view token);

struct BpeOptions {
  bool byte_level = false;     // symbols are bytes, tokens are spelled with ByteLevelName
  bool byte_fallback = false;  // a character outside the vocabulary becomes "<0x..>" tokens
  bool fuse_unk = false;       // neighbouring unknown characters make one unknown token
  bool ignore_merges = false;  // a piece that is a token is that token
  int32_t unk = -1;            // -1: unknown characters are left out
};

class Bpe {
 public:
  static constexpr size_t kMaxTokens = size_t{1} << 24;
  static constexpr size_t kMaxScoredTokenBytes = 1024;

  // `tokens[id]` is spelled as in the file; an empty string is an id without a token. Each merge
  // names two tokens, the earlier the stronger, and their concatenation must be a token.
  static absl::StatusOr<Bpe> FromMerges(
      std::vector<std::string> tokens,
      const std::vector<std::pair<std::string, std::string>>& merges, const BpeOptions& options);

  // SentencePiece: two neighbours merge when their concatenation is a token, the highest score
  // first. A token with mergeable[id] false is never the result of a merge, nor a part of one.
  static absl::StatusOr<Bpe> FromScores(std::vector<std::string> tokens,
                                        const std::vector<float>& scores,
                                        const std::vector<bool>& mergeable,
                                        const BpeOptions& options);

  // `piece` is valid UTF-8.
  void Encode(absl::string_view piece, std::vector<int32_t>* ids) const;

  const std::vector<std::string>& tokens() const { return tokens_; }
  // The id of a token spelled so, or -1.
  int32_t Find(absl::string_view token) const;

 private:
  struct Merge {
    uint32_t rank;
    int32_t id;
  };
  struct Symbol {
    int32_t id;
    uint32_t previous, next;  // kEnd where there is none
    bool live;
  };
  static constexpr uint32_t kEnd = 0xFFFFFFFF;
  static uint64_t PairKey(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }

  static absl::StatusOr<Bpe> Create(std::vector<std::string> tokens, const BpeOptions& options);
  void AddCharacters(absl::string_view piece, std::vector<int32_t>* ids) const;
  // Replaces ids[first...] by what the merges make of them.
  void ApplyMerges(size_t first, std::vector<int32_t>* ids) const;

  std::vector<std::string> tokens_;
  BpeOptions options_;
  absl::flat_hash_map<std::string, int32_t> ids_;
  absl::flat_hash_map<uint64_t, Merge> merges_;
  int32_t byte_ids_[256];   // the token of a byte (byte-level) or of its fallback, or -1
  bool all_bytes_ = false;  // every fallback token exists
};

}  // namespace eventide
