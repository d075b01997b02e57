// How vocabularies spell bytes: GPT-2's printable characters, and SentencePiece's "<0x..>".
#include <array>

#include "absl/container/flat_hash_map.h"
#include "text/bpe.h"
#include "text/utf8.h"

namespace eventide {
namespace {

// Printable Latin-1 bytes name themselves; the others, in order, are U+0100, U+0101, ...
struct ByteNames {
  std::array<std::string, 256> names;
  absl::flat_hash_map<char32_t, uint8_t> bytes;

  ByteNames() {
    char32_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
      const char32_t code = printable ? static_cast<char32_t>(byte) : next++;
      AppendUtf8(code, &names[static_cast<size_t>(byte)]);
      bytes[code] = static_cast<uint8_t>(byte);
    }
  }
};

const ByteNames& Names() {
  static const ByteNames names;
  return names;
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

}  // namespace

const std::string& ByteLevelName(uint8_t byte) {
  return Names().names[byte];
}

bool ByteLevelBytes(absl::string_view token, std::string* bytes) {
  bytes->clear();
  if (!IsValidUtf8(token)) return false;
  for (size_t i = 0, length; i < token.size(); i += length) {
    const auto byte = Names().bytes.find(DecodeUtf8(token, i, &length));
    if (byte == Names().bytes.end()) return false;
    bytes->push_back(static_cast<char>(byte->second));
  }
  return true;
}

int FallbackByte(absl::string_view token) {
  if (token.size() != 6 || token.substr(0, 3) != "<0x" || token[5] != '>') return -1;
  const int high = HexDigit(token[3]), low = HexDigit(token[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

}  // namespace eventide
