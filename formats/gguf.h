// GGUF version 2 and 3 files (llama.cpp): metadata and tensors, checked when opened. Tensor data
// stay in the mapped file; formats/quant.h turns blocks into floats.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "formats/mapped_file.h"
#include "formats/quant.h"

namespace eventide {

// Limits on what a file may declare, each far above what real files hold.
inline constexpr uint64_t kMaxGgufKeys = 1 << 16;
inline constexpr uint64_t kMaxGgufTensors = 1 << 18;
inline constexpr uint64_t kMaxGgufArray = 1 << 22;  // elements of all arrays together
inline constexpr int kMaxGgufArrayDepth = 4;

// A metadata value. Integers of all widths widen to uint64_t or int64_t, floats to double.
class GgufValue {
 public:
  using Array = std::vector<GgufValue>;
  using Variant = std::variant<uint64_t, int64_t, double, bool, std::string, Array>;

  GgufValue() = default;
  explicit GgufValue(Variant value) : value_(std::move(value)) {}

  const Variant& variant() const { return value_; }
  // Null unless the value is of that type.
  const std::string* text() const { return std::get_if<std::string>(&value_); }
  const Array* array() const { return std::get_if<Array>(&value_); }
  const bool* boolean() const { return std::get_if<bool>(&value_); }
  // An integer of any width that int64_t holds, else nothing.
  std::optional<int64_t> integer() const;
  // A float or an integer.
  std::optional<double> number() const;

 private:
  Variant value_;
};

struct GgufTensor {
  std::string name;
  QuantType type;
  std::vector<int64_t> shape;  // row-major, slowest first: the reverse of the file's order
  uint64_t bytes = 0;
  const unsigned char* data = nullptr;

  int64_t Elements() const;
};

class GgufFile {
 public:
  static absl::StatusOr<std::unique_ptr<GgufFile>> Open(const std::string& path);

  // As Open, of bytes in memory that outlive the result; `what` names them in errors.
  static absl::StatusOr<std::unique_ptr<GgufFile>> Parse(absl::string_view bytes,
                                                         absl::string_view what);

  const std::string& path() const { return path_; }

  // Metadata. Null if there is no such key.
  const GgufValue* Find(absl::string_view key) const;
  const absl::flat_hash_map<std::string, GgufValue>& metadata() const { return metadata_; }

  // Errors name the key. Without a fallback the key must be there.
  absl::StatusOr<int64_t> Integer(absl::string_view key, int64_t low, int64_t high) const;
  absl::StatusOr<int64_t> Integer(absl::string_view key, int64_t fallback, int64_t low,
                                  int64_t high) const;
  absl::StatusOr<double> Number(absl::string_view key, double fallback) const;
  absl::StatusOr<std::string> Text(absl::string_view key) const;
  absl::StatusOr<std::vector<std::string>> Texts(absl::string_view key) const;

  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  const GgufTensor* FindTensor(absl::string_view name) const;

 private:
  friend class GgufParser;

  std::string path_;
  MappedFile file_;
  absl::flat_hash_map<std::string, GgufValue> metadata_;
  std::vector<GgufTensor> tensors_;
  absl::flat_hash_map<std::string, size_t> tensor_index_;
};

}  // namespace eventide
