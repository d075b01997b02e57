// Lines of a file or of standard input, as they come; waiting for one ends with an interrupt.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace eventide {

class LineReader {
 public:
  // `path` "-" is standard input.
  static absl::StatusOr<LineReader> Open(const std::string& path);
  LineReader(LineReader&& other) noexcept;
  LineReader& operator=(LineReader&&) = delete;
  ~LineReader();

  // The next line without its end. False: the input has ended, or a signal asks to stop.
  absl::StatusOr<bool> Next(std::string* line);

 private:
  LineReader(int file, std::string name) : file_(file), name_(std::move(name)) {}
  // Adds what can be read; sets ended_ at the end. False: a signal asks to stop.
  absl::StatusOr<bool> Fill();

  int file_;
  std::string name_;  // for errors
  std::string buffer_;
  size_t begin_ = 0;  // of what no line has taken
  bool ended_ = false;
};

}  // namespace eventide
