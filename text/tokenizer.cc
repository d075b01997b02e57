#include "text/tokenizer.h"

#include "core/status.h"
#include "text/utf8.h"

namespace eventide {

const Tokenizer::Piece& Tokenizer::At(int32_t id) const {
  EVT_CHECK(IsValidId(id));
  return pieces_[static_cast<size_t>(id)];
}

absl::StatusOr<std::string> Tokenizer::Decode(absl::Span<const int32_t> ids,
                                              bool skip_special) const {
  std::string text, run;  // run: byte-fallback tokens that may make up characters
  auto end_run = [&] {
    if (IsValidUtf8(run)) {
      text += run;
    } else {
      for (size_t i = 0; i < run.size(); ++i) text.append(kReplacementCharacter);
    }
    run.clear();
  };
  for (int32_t id : ids) {
    if (!IsValidId(id)) {
      return absl::InvalidArgumentError(
          absl::StrCat("token id ", id, " is outside the vocabulary of ", vocab_size(), " tokens"));
    }
    const Piece& piece = At(id);
    if (piece.special && skip_special) continue;
    if (piece.is_byte) {
      run += piece.bytes;
      continue;
    }
    if (!run.empty() && !piece.bytes.empty()) end_run();
    text += piece.bytes;
  }
  end_run();
  if (!decode_style_.byte_fallback) text = ReplaceInvalidUtf8(text);
  if (decode_style_.strip_leading_space && !text.empty() && text[0] == ' ') text.erase(0, 1);
  return text;
}

}  // namespace eventide
