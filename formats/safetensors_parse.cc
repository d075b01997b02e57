// The header of a safetensors file: its grammar and every check on it.
#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "core/status.h"
#include "formats/json.h"
#include "formats/safetensors.h"

namespace eventide {
namespace {

using nlohmann::json;

constexpr size_t kMaxRank = 16;

struct TypeName {
  const char* name;
  DType type;
};
constexpr TypeName kTypes[] = {
    {"F32", DType::kF32}, {"F16", DType::kF16},        {"BF16", DType::kBF16},
    {"F64", DType::kF64}, {"F8_E4M3", DType::kF8E4M3}, {"F8_E5M2", DType::kF8E5M2},
    {"I64", DType::kI64}, {"I32", DType::kI32},        {"I16", DType::kI16},
    {"I8", DType::kI8},   {"U64", DType::kU64},        {"U32", DType::kU32},
    {"U16", DType::kU16}, {"U8", DType::kU8},          {"BOOL", DType::kBool},
};

// An unsigned integer that fits int64; JSON's 1.0 and -1 are not.
std::optional<uint64_t> Unsigned(const json& value) {
  if (!value.is_number_unsigned()) return std::nullopt;
  const uint64_t number = value.get<uint64_t>();
  if (number > uint64_t(std::numeric_limits<int64_t>::max())) return std::nullopt;
  return number;
}

// Bytes of a tensor of this shape, or nothing if they overflow 63 bits. An extent of 0 makes any
// shape empty, but a product that overflows before the 0 is still refused: no real file has one.
std::optional<uint64_t> ShapeBytes(const std::vector<int64_t>& shape, DType dtype) {
  uint64_t bytes = DTypeSize(dtype);
  for (int64_t extent : shape) {
    if (__builtin_mul_overflow(bytes, uint64_t(extent), &bytes)) return std::nullopt;
    if (bytes > uint64_t(std::numeric_limits<int64_t>::max())) return std::nullopt;
  }
  return bytes;
}

absl::StatusOr<DType> ParseType(const json& value) {
  if (value.is_string()) {
    for (const TypeName& row : kTypes) {
      if (value.get_ref<const std::string&>() == row.name) return row.type;
    }
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown dtype ", JsonExcerpt(value)));
}

absl::StatusOr<SafetensorsEntry> ParseEntry(const std::string& name, const json& value,
                                            uint64_t data_bytes) {
  if (!value.is_object()) return absl::InvalidArgumentError("its entry is not an object");
  const json* dtype = JsonFind(value, "dtype");
  const json* shape = JsonFind(value, "shape");
  const json* offsets = JsonFind(value, "data_offsets");
  if (dtype == nullptr || shape == nullptr || offsets == nullptr || value.size() != 3) {
    return absl::InvalidArgumentError("its entry must have dtype, shape, data_offsets, no others");
  }
  SafetensorsEntry entry;
  entry.name = name;
  ASSIGN_OR_RETURN(entry.dtype, ParseType(*dtype));
  if (!shape->is_array() || shape->size() > kMaxRank) {
    return absl::InvalidArgumentError(
        absl::StrCat("its shape is not a list of at most ", kMaxRank, " extents"));
  }
  for (const json& extent : *shape) {
    const std::optional<uint64_t> number = Unsigned(extent);
    if (!number)
      return absl::InvalidArgumentError(absl::StrCat("bad extent ", JsonExcerpt(extent)));
    entry.shape.push_back(int64_t(*number));
  }
  const std::optional<uint64_t> bytes = ShapeBytes(entry.shape, entry.dtype);
  if (!bytes) return absl::InvalidArgumentError("the size of its shape overflows");
  std::optional<uint64_t> begin, end;
  if (offsets->is_array() && offsets->size() == 2) {
    begin = Unsigned((*offsets)[0]);
    end = Unsigned((*offsets)[1]);
  }
  if (!begin || !end || *begin > *end) {
    return absl::InvalidArgumentError(absl::StrCat("bad data_offsets ", JsonExcerpt(*offsets)));
  }
  if (*end > data_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("its data ends at ", *end,
                                                   ", but the file holds only ", data_bytes,
                                                   " bytes of data (truncated?)"));
  }
  if (*end - *begin != *bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("its shape needs ", *bytes, " bytes, its data_offsets span ", *end - *begin));
  }
  entry.begin = *begin;
  entry.end = *end;
  return entry;
}

// Entries in order must cover the data section exactly.
absl::Status CheckCover(const std::vector<SafetensorsEntry>& entries, uint64_t data_bytes,
                        absl::string_view what) {
  uint64_t reached = 0;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.begin != reached) {
      return absl::InvalidArgumentError(absl::StrCat(
          what, ": tensor ", entry.name, " starts at byte ", entry.begin,
          entry.begin < reached ? ", inside the one before it, which ends at "
                                : ", leaving a hole after the one before it, which ends at ",
          reached));
    }
    reached = entry.end;
  }
  if (reached != data_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": ", data_bytes - reached, " bytes at the end belong to no tensor"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<SafetensorsEntry>> ParseSafetensors(absl::string_view bytes,
                                                               absl::string_view what,
                                                               uint64_t* data_offset) {
  auto error = [&](absl::string_view text) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": ", text));
  };
  if (bytes.size() < 8) return error("too short for a safetensors file");
  uint64_t length = 0;  // little-endian, whatever the host
  for (int i = 7; i >= 0; --i) length = length << 8 | static_cast<unsigned char>(bytes[size_t(i)]);
  if (length > kMaxSafetensorsHeaderBytes) {
    return error(absl::StrCat("its header would have ", length, " bytes; the limit is ",
                              kMaxSafetensorsHeaderBytes, " (not a safetensors file?)"));
  }
  if (length > bytes.size() - 8) return error("ends inside its header (truncated?)");
  const absl::string_view header = bytes.substr(8, length);
  if (header.empty() || header[0] != '{') return error("its header does not start with '{'");
  *data_offset = 8 + length;
  const uint64_t data_bytes = bytes.size() - *data_offset;
  ASSIGN_OR_RETURN(const json root, ParseJsonObject(header, absl::StrCat(what, " (header)")));
  std::vector<SafetensorsEntry> entries;
  for (const auto& item : root.items()) {
    if (item.key() == "__metadata__") {
      if (!item.value().is_object()) return error("__metadata__ is not an object");
      for (const json& text : item.value()) {
        if (!text.is_string()) return error("__metadata__ holds something that is not a string");
      }
      continue;
    }
    absl::StatusOr<SafetensorsEntry> entry = ParseEntry(item.key(), item.value(), data_bytes);
    if (!entry.ok()) {
      return error(absl::StrCat("tensor ", item.key(), ": ", entry.status().message()));
    }
    entries.push_back(*std::move(entry));
  }
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  RETURN_IF_ERROR(CheckCover(entries, data_bytes, what));
  return entries;
}

std::string SafetensorsHeader(std::vector<SafetensorsEntry>* entries) {
  nlohmann::ordered_json root;
  root["__metadata__"] = {{"format", "pt"}};
  uint64_t offset = 0;
  for (SafetensorsEntry& entry : *entries) {
    entry.begin = offset;
    const std::optional<uint64_t> bytes = ShapeBytes(entry.shape, entry.dtype);
    EVT_CHECK(bytes.has_value());
    offset += *bytes;
    entry.end = offset;
    const char* type = nullptr;
    for (const TypeName& row : kTypes) {
      if (row.type == entry.dtype) type = row.name;
    }
    root[entry.name] = {
        {"dtype", type}, {"shape", entry.shape}, {"data_offsets", {entry.begin, entry.end}}};
  }
  std::string text = root.dump();
  text.append((8 - text.size() % 8) % 8, ' ');  // data starts aligned to 8
  std::string result;
  for (int i = 0; i < 8; ++i) result.push_back(char(uint64_t{text.size()} >> (8 * i)));
  return result + text;
}

}  // namespace eventide
