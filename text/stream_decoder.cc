#include "text/stream_decoder.h"

#include "core/status.h"
#include "text/utf8.h"

namespace eventide {

std::string StreamDecoder::TakeComplete(bool flush) {
  std::string out;
  size_t done = 0;
  while (done < pending_.size()) {
    const Utf8Unit unit = ScanUtf8(absl::string_view(pending_).substr(done));
    if (unit.kind == Utf8Kind::kIncomplete && !flush) break;
    if (unit.kind == Utf8Kind::kCharacter) {
      out.append(pending_, done, unit.bytes);
    } else {
      const size_t times = tokenizer_->decode_style().byte_fallback ? unit.bytes : 1;
      for (size_t i = 0; i < times; ++i) out.append(kReplacementCharacter);
    }
    done += unit.bytes;
  }
  pending_.erase(0, done);
  if (at_start_ && !out.empty()) {
    at_start_ = false;
    if (tokenizer_->decode_style().strip_leading_space && out[0] == ' ') out.erase(0, 1);
  }
  return out;
}

absl::StatusOr<std::string> StreamDecoder::Push(int32_t id) {
  if (!tokenizer_->IsValidId(id)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "token id ", id, " is outside the vocabulary of ", tokenizer_->vocab_size(), " tokens"));
  }
  if (skip_special_ && tokenizer_->IsSpecial(id)) return std::string();
  const std::string& bytes = tokenizer_->TokenBytes(id);
  if (bytes.empty()) return std::string();
  std::string out;
  // Fallback bytes combine only with each other.
  if (tokenizer_->decode_style().byte_fallback && !tokenizer_->IsByteToken(id)) {
    out = TakeComplete(/*flush=*/true);
  }
  pending_ += bytes;
  out += TakeComplete(/*flush=*/false);
  return out;
}

absl::Status StreamDecoder::Prime(absl::Span<const int32_t> context) {
  for (int32_t id : context) {
    absl::StatusOr<std::string> text = Push(id);
    if (!text.ok()) return text.status();
  }
  return absl::OkStatus();
}

std::string StreamDecoder::Finish() {
  return TakeComplete(/*flush=*/true);
}

}  // namespace eventide
