// A file mapped read-only into memory for as long as the object lives.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace eventide {

class MappedFile {
 public:
  // Errors name the path. Only regular files; an empty one maps to an empty view. The file must not
  // be shortened while mapped (the kernel ends a process that reads beyond the end).
  static absl::StatusOr<MappedFile> Open(const std::string& path);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const std::string& path() const { return path_; }
  const unsigned char* data() const { return data_; }
  size_t size() const { return size_; }
  absl::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }

 private:
  std::string path_;
  const unsigned char* data_ = nullptr;
  size_t size_ = 0;
};

// The whole of a small text file; refuses one of more than `limit` bytes.
absl::StatusOr<std::string> ReadTextFile(const std::string& path, size_t limit);

}  // namespace eventide
