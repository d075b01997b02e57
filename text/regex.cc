#include "text/regex.h"

#include <utf8proc.h>

#include <limits>

#include "core/status.h"

namespace eventide {

void CharSet::AddOtherCases() {
  const size_t count = ranges_.size();
  for (size_t i = 0; i < count; ++i) {
    const auto [first, last] = ranges_[i];
    for (char32_t c = first; c <= last && c < 128; ++c) {
      if (c >= 'a' && c <= 'z') AddRange(c - 32, c - 32);
      if (c >= 'A' && c <= 'Z') AddRange(c + 32, c + 32);
      if (c == 's' || c == 'S') AddRange(0x17F, 0x17F);    // long s folds to s
      if (c == 'k' || c == 'K') AddRange(0x212A, 0x212A);  // the Kelvin sign folds to k
    }
    if (first == last && first >= 128) {
      for (utf8proc_int32_t other : {utf8proc_tolower(static_cast<utf8proc_int32_t>(first)),
                                     utf8proc_toupper(static_cast<utf8proc_int32_t>(first))}) {
        AddRange(static_cast<char32_t>(other), static_cast<char32_t>(other));
      }
    }
  }
}

void CharSet::Finish() {
  for (char32_t c = 0; c < 128; ++c) ascii_[c] = Test(c);
}

bool CharSet::Test(char32_t code) const {
  bool in = false;
  for (const auto& [first, last] : ranges_) in |= code >= first && code <= last;
  if (!in && non_space_) in = !IsWhiteSpace(code);
  if (!in && categories_ != kNoCategories) in = (CategoryOf(code) & categories_) != 0;
  return in != negated_;
}

bool Regex::Find(absl::string_view text, size_t position, size_t* begin, size_t* end) const {
  while (position < text.size()) {
    const size_t match = MatchAt(text, position);
    if (match != kNoMatch && match > position) {
      *begin = position;
      *end = match;
      return true;
    }
    size_t bytes;
    DecodeUtf8(text, position, &bytes);
    position += bytes;
  }
  return false;
}

size_t Regex::RunSet(const Node& node, absl::string_view text, size_t position) const {
  uint32_t count = 0;
  while (count < node.max && position < text.size()) {
    size_t bytes;
    if (!node.set.Contains(DecodeUtf8(text, position, &bytes))) break;
    position += bytes;
    ++count;
  }
  if (count < node.min) return kNoMatch;
  if (node.possessive) return Run(node.next, text, position);
  while (true) {
    const size_t match = Run(node.next, text, position);
    if (match != kNoMatch || count == node.min) return match;
    do {
      --position;
    } while ((static_cast<unsigned char>(text[position]) & 0xC0) == 0x80);
    --count;
  }
}

size_t Regex::Run(int32_t index, absl::string_view text, size_t position) const {
  const Node& node = nodes_[static_cast<size_t>(index)];
  switch (node.kind) {
    case Kind::kAccept:
      return position;
    case Kind::kSet:
      return RunSet(node, text, position);
    case Kind::kBranch:
      for (int32_t branch : node.branches) {
        const size_t match = Run(branch, text, position);
        if (match != kNoMatch) return match;
      }
      return kNoMatch;
    case Kind::kAhead:
    case Kind::kNotAhead: {
      const bool found = Run(node.branches[0], text, position) != kNoMatch;
      if (found != (node.kind == Kind::kAhead)) return kNoMatch;
      return Run(node.next, text, position);
    }
  }
  return kNoMatch;
}

}  // namespace eventide
