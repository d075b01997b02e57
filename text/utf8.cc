#include "text/utf8.h"

#include <utf8proc.h>

#include <cstdlib>

#include "core/status.h"

namespace eventide {
namespace {

// Bytes of the character that `lead` starts (0: no character starts so), and the range allowed for
// the second byte (Unicode 15, table 3-7).
size_t LeadByte(unsigned char lead, unsigned char* low, unsigned char* high) {
  *low = 0x80;
  *high = 0xBF;
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4) return 0;
  if (lead < 0xE0) return 2;
  if (lead < 0xF0) {
    if (lead == 0xE0) *low = 0xA0;
    if (lead == 0xED) *high = 0x9F;
    return 3;
  }
  if (lead == 0xF0) *low = 0x90;
  if (lead == 0xF4) *high = 0x8F;
  return 4;
}

}  // namespace

Utf8Unit ScanUtf8(absl::string_view text) {
  unsigned char low, high;
  const size_t length = LeadByte(static_cast<unsigned char>(text[0]), &low, &high);
  if (length == 0) return {Utf8Kind::kInvalid, 1, 0};
  for (size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {Utf8Kind::kIncomplete, i, 0};
    const unsigned char byte = static_cast<unsigned char>(text[i]);
    if (byte < low || byte > high) return {Utf8Kind::kInvalid, i, 0};
    low = 0x80;
    high = 0xBF;
  }
  size_t bytes;
  const char32_t code = DecodeUtf8(text, 0, &bytes);
  return {Utf8Kind::kCharacter, bytes, code};
}

bool IsValidUtf8(absl::string_view text) {
  for (size_t i = 0; i < text.size();) {
    if (static_cast<unsigned char>(text[i]) < 0x80) {
      ++i;
      continue;
    }
    const Utf8Unit unit = ScanUtf8(text.substr(i));
    if (unit.kind != Utf8Kind::kCharacter) return false;
    i += unit.bytes;
  }
  return true;
}

std::string ReplaceInvalidUtf8(absl::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const Utf8Unit unit = ScanUtf8(text.substr(i));
    const bool good = unit.kind == Utf8Kind::kCharacter;
    const absl::string_view add =
        good ? text.substr(i, unit.bytes) : absl::string_view(kReplacementCharacter);
    out.append(add.data(), add.size());
    i += unit.bytes;
  }
  return out;
}

void AppendUtf8(char32_t code, std::string* out) {
  utf8proc_uint8_t buffer[4];
  const utf8proc_ssize_t bytes = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code), buffer);
  out->append(reinterpret_cast<const char*>(buffer), static_cast<size_t>(bytes));
}

bool IsWhiteSpace(char32_t code) {
  if (code < 0x80) return code == ' ' || (code >= '\t' && code <= '\r');
  return code == 0x85 || code == 0xA0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200A) ||
         code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F || code == 0x3000;
}

CategoryMask CategoriesNamed(absl::string_view name) {
  // Spelled as utf8proc_category_string spells them, in the order of its enumeration.
  static constexpr const char* kNames[] = {
      "Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps",
      "Pe", "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co"};
  CategoryMask mask = kNoCategories;
  if (name.empty() || name.size() > 2) return mask;
  for (size_t i = 0; i < sizeof(kNames) / sizeof(kNames[0]); ++i) {
    if (absl::string_view(kNames[i]).substr(0, name.size()) == name) mask |= CategoryMask{1} << i;
  }
  return mask;
}

CategoryMask CategoryOf(char32_t code) {
  return CategoryMask{1} << utf8proc_category(static_cast<utf8proc_int32_t>(code));
}

std::string NormalizeUnicode(absl::string_view valid_text, UnicodeForm form) {
  int options = UTF8PROC_STABLE;
  const bool compose = form == UnicodeForm::kNfc || form == UnicodeForm::kNfkc;
  options |= compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == UnicodeForm::kNfkc || form == UnicodeForm::kNfkd) options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* mapped = nullptr;
  const utf8proc_ssize_t bytes =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(valid_text.data()),
                   static_cast<utf8proc_ssize_t>(valid_text.size()), &mapped,
                   static_cast<utf8proc_option_t>(options));
  EVT_CHECK(bytes >= 0);  // only invalid text or no memory, and the text is valid
  std::string out(reinterpret_cast<const char*>(mapped), static_cast<size_t>(bytes));
  std::free(mapped);
  return out;
}

}  // namespace eventide
