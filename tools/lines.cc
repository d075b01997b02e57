#include "tools/lines.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/status.h"
#include "tools/interrupt.h"

namespace eventide {
namespace {

constexpr int kPollMs = 100;  // how long a signal may wait for a reader that waits
constexpr size_t kChunk = 1 << 16;

}  // namespace

absl::StatusOr<LineReader> LineReader::Open(const std::string& path) {
  if (path == "-") return LineReader(STDIN_FILENO, "standard input");
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) {
    return absl::NotFoundError(absl::StrCat(path, " cannot be read: ", std::strerror(errno)));
  }
  return LineReader(file, path);
}

LineReader::LineReader(LineReader&& other) noexcept
    : file_(std::exchange(other.file_, -1)),
      name_(std::move(other.name_)),
      buffer_(std::move(other.buffer_)),
      begin_(other.begin_),
      ended_(other.ended_) {}

LineReader::~LineReader() {
  if (file_ > STDIN_FILENO) close(file_);
}

absl::StatusOr<bool> LineReader::Fill() {
  pollfd waiting = {file_, POLLIN, 0};
  while (poll(&waiting, 1, kPollMs) <= 0) {
    if (PendingInterrupt() != 0) return false;
  }
  buffer_.erase(0, begin_);
  begin_ = 0;
  const size_t before = buffer_.size();
  buffer_.resize(before + kChunk);
  ssize_t bytes;
  do {
    bytes = read(file_, buffer_.data() + before, kChunk);
  } while (bytes < 0 && errno == EINTR);
  buffer_.resize(before + (bytes > 0 ? static_cast<size_t>(bytes) : 0));
  if (bytes < 0) {
    return absl::DataLossError(
        absl::StrCat(name_, " cannot be read to its end: ", std::strerror(errno)));
  }
  ended_ = bytes == 0;
  return true;
}

absl::StatusOr<bool> LineReader::Next(std::string* line) {
  for (size_t searched = begin_;;) {
    if (PendingInterrupt() != 0) return false;
    const size_t end = buffer_.find('\n', searched);
    if (end != std::string::npos || (ended_ && begin_ < buffer_.size())) {
      const size_t stop = end == std::string::npos ? buffer_.size() : end;
      line->assign(buffer_, begin_, stop - begin_);
      begin_ = std::min(stop + 1, buffer_.size());
      return true;
    }
    if (ended_) return false;
    const size_t kept = buffer_.size() - begin_;
    ASSIGN_OR_RETURN(const bool more, Fill());
    if (!more) return false;
    searched = kept;  // Fill has moved what was kept to the front
  }
}

}  // namespace eventide
