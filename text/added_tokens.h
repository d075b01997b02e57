// Tokens that are found in the text as they are written, before any merging ("<|im_start|>", runs
// of spaces, ...), with the options Hugging Face gives them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "text/normalizer.h"

namespace eventide {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = true;      // left out of decoded text on request
  bool normalized = false;  // looked for in the normalised text rather than the raw text
  bool single_word = false, lstrip = false, rstrip = false;
};

// Finds the leftmost, then longest, of a set of tokens. Time is the text's length times the longest
// common prefix with a token.
class AddedTokenMatcher {
 public:
  struct Section {
    absl::string_view text;
    int32_t id = -1;  // of the token found, or -1: ordinary text
  };

  // `content` is `token.content` as it appears in the text searched. An empty one is never found.
  void Add(const AddedToken& token, absl::string_view content);

  // Adds the sections of `text` in order; none is empty.
  void Split(absl::string_view text, std::vector<Section>* sections) const;

 private:
  // The longest token at the front of `text`: its index in tokens_, or -1; and its length.
  int32_t Longest(absl::string_view text, size_t* bytes) const;

  std::vector<AddedToken> tokens_;
  std::vector<int32_t> ends_ = {-1};  // of each trie node: the token that ends there
  absl::flat_hash_map<uint64_t, uint32_t> children_;  // node << 8 | byte -> node
  bool starts_[256] = {};
};

}  // namespace eventide
