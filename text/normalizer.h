// What happens to text before it is cut: Unicode normal forms, and SentencePiece's habit of putting
// U+2581 in place of spaces and in front of the text.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "text/utf8.h"

namespace eventide {

// U+2581, which stands for a space in SentencePiece vocabularies.
inline constexpr absl::string_view kSpaceMark = "\xE2\x96\x81";

class Normalizer {
 public:
  void AddForm(UnicodeForm form) { steps_.push_back({Step::kForm, form, "", ""}); }
  // Puts `text` in front of whatever is not empty.
  void AddPrepend(std::string text) { steps_.push_back({Step::kPrepend, {}, "", std::move(text)}); }
  // `from` is not empty.
  void AddReplace(std::string from, std::string to) {
    steps_.push_back({Step::kReplace, {}, std::move(from), std::move(to)});
  }

  bool empty() const { return steps_.empty(); }
  std::string Apply(absl::string_view valid_text) const;

 private:
  struct Step {
    enum Kind { kForm, kPrepend, kReplace } kind;
    UnicodeForm form;
    std::string from, to;
  };
  std::vector<Step> steps_;
};

}  // namespace eventide
