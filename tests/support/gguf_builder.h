// Writes GGUF bytes, right or wrong ones, for tests of what reads them.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace eventide {

class GgufBuilder {
 public:
  template <typename T>
  static std::string Bytes(T value) {
    std::string bytes(sizeof(T), '\0');
    std::memcpy(bytes.data(), &value, sizeof(T));
    return bytes;
  }
  static std::string Text(const std::string& text) { return Bytes(uint64_t{text.size()}) + text; }

  // A key with a value of file type `type` whose bytes are `value`.
  GgufBuilder& Key(const std::string& key, uint32_t type, const std::string& value) {
    keys_ += Text(key) + Bytes(type) + value;
    ++key_count;
    return *this;
  }
  GgufBuilder& U32(const std::string& key, uint32_t value) { return Key(key, 4, Bytes(value)); }
  GgufBuilder& F32(const std::string& key, float value) { return Key(key, 6, Bytes(value)); }
  GgufBuilder& String(const std::string& key, const std::string& value) {
    return Key(key, 8, Text(value));
  }

  // `dims` in the file's order, fastest first.
  GgufBuilder& Tensor(const std::string& name, const std::vector<uint64_t>& dims, uint32_t type,
                      const std::string& data) {
    data_.resize((data_.size() + 31) / 32 * 32);
    return TensorAt(name, dims, type, data_.size(), data);
  }
  GgufBuilder& TensorAt(const std::string& name, const std::vector<uint64_t>& dims, uint32_t type,
                        uint64_t offset, const std::string& data) {
    infos_ += Text(name) + Bytes(uint32_t(dims.size()));
    for (uint64_t dim : dims) infos_ += Bytes(dim);
    infos_ += Bytes(type) + Bytes(offset);
    ++tensor_count;
    if (data_.size() < offset + data.size() && !data.empty()) data_.resize(offset + data.size());
    data_.replace(offset <= data_.size() ? offset : data_.size(), data.size(), data);
    return *this;
  }

  std::string Build() const {
    std::string bytes = magic + Bytes(version) + Bytes(tensor_count) + Bytes(key_count);
    bytes += keys_ + infos_;
    bytes.resize((bytes.size() + 31) / 32 * 32);
    return bytes + data_;
  }

  std::string magic = "GGUF";
  uint32_t version = 3;
  uint64_t tensor_count = 0;
  uint64_t key_count = 0;

 private:
  std::string keys_, infos_, data_;
};

// Float32 values as bytes.
inline std::string FloatBytes(const std::vector<float>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
}

}  // namespace eventide
