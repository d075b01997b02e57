#include "text/added_tokens.h"

#include <algorithm>

namespace eventide {
namespace {

// The regular expression \w of Rust: Alphabetic, marks, decimal digits, connectors, join controls.
bool IsWord(char32_t code) {
  static const CategoryMask kWord = CategoriesNamed("L") | CategoriesNamed("M") |
                                    CategoriesNamed("Nd") | CategoriesNamed("Nl") |
                                    CategoriesNamed("Pc");
  if ((CategoryOf(code) & kWord) != 0 || code == 0x200C || code == 0x200D) return true;
  // Letters in circles and squares are symbols, and yet Alphabetic.
  return (code >= 0x24B6 && code <= 0x24E9) || (code >= 0x1F130 && code <= 0x1F149) ||
         (code >= 0x1F150 && code <= 0x1F169) || (code >= 0x1F170 && code <= 0x1F189);
}

size_t LastCharacter(absl::string_view text, size_t end) {
  do {
    --end;
  } while ((static_cast<unsigned char>(text[end]) & 0xC0) == 0x80);
  return end;
}

bool WordBefore(absl::string_view text, size_t position) {
  size_t bytes;
  return position > 0 && IsWord(DecodeUtf8(text, LastCharacter(text, position), &bytes));
}

bool WordAfter(absl::string_view text, size_t position) {
  size_t bytes;
  return position < text.size() && IsWord(DecodeUtf8(text, position, &bytes));
}

size_t SkipSpaceBack(absl::string_view text, size_t position) {
  size_t bytes;
  while (position > 0) {
    const size_t last = LastCharacter(text, position);
    if (!IsWhiteSpace(DecodeUtf8(text, last, &bytes))) break;
    position = last;
  }
  return position;
}

size_t SkipSpace(absl::string_view text, size_t position) {
  size_t bytes;
  while (position < text.size() && IsWhiteSpace(DecodeUtf8(text, position, &bytes))) {
    position += bytes;
  }
  return position;
}

}  // namespace

void AddedTokenMatcher::Add(const AddedToken& token, absl::string_view content) {
  if (content.empty()) return;
  uint32_t node = 0;
  for (char c : content) {
    const uint64_t key = uint64_t{node} << 8 | static_cast<unsigned char>(c);
    auto [child, is_new] = children_.try_emplace(key, static_cast<uint32_t>(ends_.size()));
    node = child->second;
    if (is_new) ends_.push_back(-1);
  }
  starts_[static_cast<unsigned char>(content[0])] = true;
  ends_[node] = static_cast<int32_t>(tokens_.size());
  tokens_.push_back(token);
}

int32_t AddedTokenMatcher::Longest(absl::string_view text, size_t* bytes) const {
  int32_t found = -1;
  uint32_t node = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto child = children_.find(uint64_t{node} << 8 | static_cast<unsigned char>(text[i]));
    if (child == children_.end()) break;
    node = child->second;
    if (ends_[node] >= 0) {
      found = ends_[node];
      *bytes = i + 1;
    }
  }
  return found;
}

void AddedTokenMatcher::Split(absl::string_view text, std::vector<Section>* sections) const {
  size_t done = 0;  // sections cover text[0, done)
  size_t position = 0;
  while (position < text.size()) {
    size_t bytes = 1;
    const int32_t found = starts_[static_cast<unsigned char>(text[position])]
                              ? Longest(text.substr(position), &bytes)
                              : -1;
    size_t begin = position, end = position + bytes;
    // The next search starts behind the match even where the options below refuse or widen it.
    position = end;
    if (found < 0) continue;
    const AddedToken& token = tokens_[static_cast<size_t>(found)];
    if (token.single_word && (WordBefore(text, begin) || WordAfter(text, end))) continue;
    if (token.lstrip) begin = std::max(SkipSpaceBack(text, begin), done);
    if (token.rstrip) end = SkipSpace(text, end);
    if (end <= done) continue;  // an earlier token took the spaces this one consists of
    begin = std::max(begin, done);
    if (done < begin) sections->push_back({text.substr(done, begin - done), -1});
    sections->push_back({text.substr(begin, end - begin), token.id});
    done = end;
  }
  if (done < text.size()) sections->push_back({text.substr(done), -1});
}

}  // namespace eventide
