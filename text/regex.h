// The part of regular expressions that pre-tokenizers use: alternation, groups (?:..), (?i:..),
// sets with \p{..} and \s, greedy and possessive repeats of one character, optional groups,
// look-ahead. Anything else is refused by name when the pattern is compiled.
//
// A backtracking matcher whose recursion is bounded by the pattern, never by the text (a repeat is
// a loop), with leftmost-first alternatives as in Oniguruma, which Hugging Face tokenizers use.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/utf8.h"

namespace eventide {

// A set of code points.
class CharSet {
 public:
  void AddRange(char32_t first, char32_t last) { ranges_.push_back({first, last}); }
  void AddCategories(CategoryMask mask) { categories_ |= mask; }
  void AddNonSpace() { non_space_ = true; }
  void Negate() { negated_ = !negated_; }
  void AddOtherCases();  // of every single code point and ASCII letter range added so far
  void Finish();         // call once, after the last change
  bool Contains(char32_t code) const { return code < 128 ? ascii_[code] : Test(code); }

 private:
  bool Test(char32_t code) const;

  std::vector<std::pair<char32_t, char32_t>> ranges_;
  CategoryMask categories_ = kNoCategories;
  bool non_space_ = false;
  bool negated_ = false;
  bool ascii_[128] = {};
};

class Regex {
 public:
  static constexpr size_t kNoMatch = static_cast<size_t>(-1);

  static absl::StatusOr<Regex> Compile(absl::string_view pattern);

  // The end of the match that starts exactly at `position` of valid UTF-8, or kNoMatch.
  size_t MatchAt(absl::string_view text, size_t position) const {
    return Run(start_, text, position);
  }

  // The first non-empty match at or after `position`.
  bool Find(absl::string_view text, size_t position, size_t* begin, size_t* end) const;

 private:
  friend class RegexCompiler;
  enum class Kind { kAccept, kSet, kBranch, kAhead, kNotAhead };
  struct Node {
    Kind kind = Kind::kAccept;
    int32_t next = -1;
    CharSet set;                    // kSet
    uint32_t min = 1, max = 1;      // kSet
    bool possessive = false;        // kSet: gives nothing back
    std::vector<int32_t> branches;  // kBranch: in order of preference; look-ahead: one
  };

  size_t Run(int32_t node, absl::string_view text, size_t position) const;
  size_t RunSet(const Node& node, absl::string_view text, size_t position) const;

  std::vector<Node> nodes_;
  int32_t start_ = 0;
};

}  // namespace eventide
