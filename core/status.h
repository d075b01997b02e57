// Error handling for host code: absl::Status for what a user or the machine can cause, EVT_CHECK for
// bugs of Eventide itself (on in release builds too).
#pragma once

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace eventide {

// Prints where and what, then ends the process: an invariant of Eventide is broken, so no result can
// be trusted.
[[noreturn]] inline void CheckFailed(const char* file, int line, const char* what) {
  std::fprintf(stderr, "%s:%d: check failed: %s\n", file, line, what);
  std::abort();
}

}  // namespace eventide

#define EVT_CHECK(condition) \
  ((condition) ? (void)0 : ::eventide::CheckFailed(__FILE__, __LINE__, #condition))

#define RETURN_IF_ERROR(expression)                        \
  do {                                                     \
    if (absl::Status status_ = (expression); !status_.ok()) return status_; \
  } while (false)

#define EVT_STATUS_CONCAT_INNER(a, b) a##b
#define EVT_STATUS_CONCAT(a, b) EVT_STATUS_CONCAT_INNER(a, b)
#define ASSIGN_OR_RETURN(lhs, expression)                                  \
  auto EVT_STATUS_CONCAT(status_or_, __LINE__) = (expression);             \
  if (!EVT_STATUS_CONCAT(status_or_, __LINE__).ok())                       \
    return EVT_STATUS_CONCAT(status_or_, __LINE__).status();               \
  lhs = *std::move(EVT_STATUS_CONCAT(status_or_, __LINE__))
