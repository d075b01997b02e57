#include "runtime/executor.h"

#include "absl/strings/str_format.h"

namespace eventide {

absl::Status CheckRange(const Buffer& buffer, int64_t offset, int64_t bytes) {
  if (offset < 0 || bytes < 0 || offset > buffer.bytes || bytes > buffer.bytes - offset) {
    return absl::OutOfRangeError(absl::StrFormat("bytes [%d, %d + %d) of a buffer of %d bytes",
                                                 offset, offset, bytes, buffer.bytes));
  }
  return absl::OkStatus();
}

}  // namespace eventide
