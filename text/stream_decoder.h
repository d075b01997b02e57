// Token ids to text, one at a time: every Push returns the characters that are complete by now, and
// never half of one.
//
// The concatenated results equal Tokenizer::Decode of all ids, with one exception: in a run of
// byte-fallback tokens that turns out to be invalid UTF-8, characters already given out stay, where
// Decode replaces the whole run.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "text/tokenizer.h"

namespace eventide {

class StreamDecoder {
 public:
  // `tokenizer` must outlive this.
  explicit StreamDecoder(const Tokenizer* tokenizer, bool skip_special = true)
      : tokenizer_(tokenizer), skip_special_(skip_special) {}

  // What stands before the ids to come (a prompt): its text is not returned, but half a character
  // at its end is completed by what follows, and a leading space of a continuation is kept.
  absl::Status Prime(absl::Span<const int32_t> context);

  // An id outside the vocabulary is an error and changes nothing.
  absl::StatusOr<std::string> Push(int32_t id);

  // U+FFFD for a character that was never completed; empty in general.
  std::string Finish();

 private:
  std::string TakeComplete(bool flush);

  const Tokenizer* tokenizer_;
  bool skip_special_;
  bool at_start_ = true;  // nothing was given out yet
  std::string pending_;   // the beginning of a character: at most 3 bytes between calls
};

}  // namespace eventide
