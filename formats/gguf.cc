#include "formats/gguf.h"

#include <limits>
#include <utility>

#include "core/status.h"

namespace eventide {

std::optional<int64_t> GgufValue::integer() const {
  if (const auto* number = std::get_if<int64_t>(&value_)) return *number;
  const auto* number = std::get_if<uint64_t>(&value_);
  if (number == nullptr || *number > uint64_t(std::numeric_limits<int64_t>::max())) {
    return std::nullopt;
  }
  return int64_t(*number);
}

std::optional<double> GgufValue::number() const {
  if (const auto* number = std::get_if<double>(&value_)) return *number;
  if (const std::optional<int64_t> number = integer()) return double(*number);
  return std::nullopt;
}

int64_t GgufTensor::Elements() const {
  int64_t product = 1;
  for (int64_t extent : shape) product *= extent;
  return product;
}

const GgufValue* GgufFile::Find(absl::string_view key) const {
  auto it = metadata_.find(key);
  return it == metadata_.end() ? nullptr : &it->second;
}

const GgufTensor* GgufFile::FindTensor(absl::string_view name) const {
  auto it = tensor_index_.find(name);
  return it == tensor_index_.end() ? nullptr : &tensors_[it->second];
}

absl::StatusOr<int64_t> GgufFile::Integer(absl::string_view key, int64_t low, int64_t high) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(path_, ": metadata key ", key, " is missing"));
  }
  const std::optional<int64_t> number = value->integer();
  if (!number || *number < low || *number > high) {
    return absl::InvalidArgumentError(
        absl::StrCat(path_, ": ", key, number ? absl::StrCat(" is ", *number) : " is no integer",
                     "; expected one from ", low, " to ", high));
  }
  return *number;
}

absl::StatusOr<int64_t> GgufFile::Integer(absl::string_view key, int64_t fallback, int64_t low,
                                          int64_t high) const {
  return Find(key) == nullptr ? fallback : Integer(key, low, high);
}

absl::StatusOr<double> GgufFile::Number(absl::string_view key, double fallback) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return fallback;
  const std::optional<double> number = value->number();
  if (!number) {
    return absl::InvalidArgumentError(absl::StrCat(path_, ": ", key, " is not a number"));
  }
  return *number;
}

absl::StatusOr<std::string> GgufFile::Text(absl::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr || value->text() == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(path_, ": metadata key ", key, value ? " is not a string" : " is missing"));
  }
  return *value->text();
}

absl::StatusOr<std::vector<std::string>> GgufFile::Texts(absl::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr || value->array() == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(path_, ": metadata key ", key, value ? " is not an array" : " is missing"));
  }
  std::vector<std::string> result;
  result.reserve(value->array()->size());
  for (const GgufValue& element : *value->array()) {
    if (element.text() == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(path_, ": ", key, " is no array of strings"));
    }
    result.push_back(*element.text());
  }
  return result;
}

}  // namespace eventide
