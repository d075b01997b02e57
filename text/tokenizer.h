// Text to token ids and back. Tokenizer is what the rest of Eventide sees; the readers for files
// are in hf_tokenizer.h, llama2c_tokenizer.h and gguf_tokenizer.h.
//
// Thread-safe: a Tokenizer does not change after it has been made.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace eventide {

// What decoding does beyond joining the bytes of tokens.
struct DecodeStyle {
  bool strip_leading_space = false;  // SentencePiece puts a space in front of what it encodes
  // Bytes come from fallback tokens: a run of them that is not UTF-8 becomes one U+FFFD per byte.
  // Otherwise (byte-level) each maximal invalid subpart becomes one U+FFFD.
  bool byte_fallback = false;
};

class Tokenizer {
 public:
  // More text than this at once is refused.
  static constexpr size_t kMaxTextBytes = size_t{256} << 20;

  virtual ~Tokenizer() = default;

  // Invalid UTF-8 in `text` is replaced by U+FFFD first. `add_special_bos`: also the tokens that
  // the vocabulary's own template puts around a text (mostly BOS in front; for many models none).
  virtual absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text,
                                                      bool add_special_bos) const = 0;

  // Valid UTF-8, the same as Hugging Face's decode. `skip_special` leaves special tokens out.
  // An id outside the vocabulary is an error that names it.
  absl::StatusOr<std::string> Decode(absl::Span<const int32_t> ids, bool skip_special) const;

  // Ids are 0 ... vocab_size() - 1. A model's output may be wider than that: mask the rest.
  int vocab_size() const { return static_cast<int>(pieces_.size()); }
  bool IsValidId(int32_t id) const { return id >= 0 && id < vocab_size(); }
  // The bytes that `id` stands for; empty for an id without a token. EVT_CHECKs IsValidId.
  const std::string& TokenBytes(int32_t id) const { return At(id).bytes; }
  // Special tokens are left out of decoded text on request.
  bool IsSpecial(int32_t id) const { return At(id).special; }
  // A byte-fallback token, one byte of a character.
  bool IsByteToken(int32_t id) const { return At(id).is_byte; }
  // The id of a token by its text in the vocabulary file, such as "<|im_end|>".
  virtual std::optional<int32_t> TokenId(absl::string_view token) const = 0;

  std::optional<int32_t> bos_id() const { return bos_id_; }
  const std::vector<int32_t>& eos_ids() const { return eos_ids_; }
  // What Encode puts in front of and behind the text with add_special_bos.
  const std::vector<int32_t>& prefix_ids() const { return prefix_ids_; }
  const std::vector<int32_t>& suffix_ids() const { return suffix_ids_; }
  const DecodeStyle& decode_style() const { return decode_style_; }

 protected:
  struct Piece {
    std::string bytes;
    bool special = false;
    bool is_byte = false;
  };
  const Piece& At(int32_t id) const;

  std::vector<Piece> pieces_;
  std::optional<int32_t> bos_id_;
  std::vector<int32_t> eos_ids_;
  std::vector<int32_t> prefix_ids_, suffix_ids_;
  DecodeStyle decode_style_;
};

}  // namespace eventide
