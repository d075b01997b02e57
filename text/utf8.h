// UTF-8 and the few Unicode properties that tokenizers need (general categories come from
// utf8proc). Everything here works on bytes and never throws; invalid input has one documented
// treatment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace eventide {

// U+FFFD as UTF-8.
inline constexpr char kReplacementCharacter[] = "\xEF\xBF\xBD";

enum class Utf8Kind {
  kCharacter,   // a whole well-formed character
  kInvalid,     // `bytes` bytes that no continuation can make well-formed (a maximal subpart)
  kIncomplete,  // the text ends inside a character that further bytes could complete
};

struct Utf8Unit {
  Utf8Kind kind;
  size_t bytes;   // >= 1
  char32_t code;  // of a character only
};

// What begins at the front of `text`, which is not empty.
Utf8Unit ScanUtf8(absl::string_view text);

bool IsValidUtf8(absl::string_view text);

// Each maximal invalid subpart, and an incomplete character at the end, becomes one U+FFFD: the
// same as Rust's from_utf8_lossy and Python's errors="replace".
std::string ReplaceInvalidUtf8(absl::string_view text);

// The character at `position` of text known to be valid, and its length in *bytes.
inline char32_t DecodeUtf8(absl::string_view text, size_t position, size_t* bytes) {
  auto byte = [&](size_t i) { return static_cast<unsigned char>(text[position + i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return *bytes = 1, lead;
  if (lead < 0xE0) return *bytes = 2, (lead & 0x1F) << 6 | (byte(1) & 0x3F);
  if (lead < 0xF0) {
    return *bytes = 3, (lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
  }
  return *bytes = 4,
         (lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
}

void AppendUtf8(char32_t code, std::string* out);

// The Unicode property White_Space.
bool IsWhiteSpace(char32_t code);

// A set of general categories: bit c stands for utf8proc category c.
using CategoryMask = uint32_t;

inline constexpr CategoryMask kNoCategories = 0;
// "L", "Lu", "N", "Nd", ...; kNoCategories when there is no such category.
CategoryMask CategoriesNamed(absl::string_view name);
CategoryMask CategoryOf(char32_t code);  // exactly one bit

enum class UnicodeForm { kNfc, kNfd, kNfkc, kNfkd };
std::string NormalizeUnicode(absl::string_view valid_text, UnicodeForm form);

}  // namespace eventide
