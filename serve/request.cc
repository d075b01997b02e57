#include "serve/request.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace eventide {
namespace {

// Limits of what a request may carry, so that one request cannot exhaust the host.
constexpr size_t kMaxIdBytes = 1024;
constexpr size_t kMaxStopTokenIds = 1024;
constexpr size_t kMaxStopStrings = 64;
constexpr size_t kMaxStopStringBytes = 4096;

absl::Status Invalid(const Request& request, const std::string& what) {
  return absl::InvalidArgumentError(
      absl::StrCat("request '", request.id.substr(0, 64), "': ", what));
}

}  // namespace

absl::Status NoNumbers(absl::string_view where) {
  return absl::DataLossError(absl::StrCat(
      where, " the logits are no numbers (NaN): the model's values leave the range of their type, or the checkpoint "
      "is broken; where --dtype is float16, choose bfloat16"));
}

const char* FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return "";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAbort:
      return "abort";
    case FinishReason::kError:
      return "error";
  }
  return "";
}

absl::Status ValidateRequest(const Request& request) {
  const SamplingParams& s = request.sampling;
  if (request.id.empty() || request.id.size() > kMaxIdBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a request's id must have 1 to ", kMaxIdBytes, " bytes"));
  }
  if (request.prompt.empty())
    return Invalid(request, "the prompt is empty; give at least one token");
  for (size_t i = 0; i < request.prompt.size(); ++i) {
    if (request.prompt[i] < 0) {
      return Invalid(request, absl::StrCat("prompt token ", i, " is ", request.prompt[i],
                                           "; token ids are not negative"));
    }
  }
  if (s.max_tokens == 0) return Invalid(request, "max_tokens is 0; it must be at least 1");
  if (s.min_tokens > s.max_tokens) {
    return Invalid(
        request, absl::StrCat("min_tokens ", s.min_tokens, " is above max_tokens ", s.max_tokens));
  }
  if (!std::isfinite(s.temperature) || s.temperature < 0) {
    return Invalid(request, absl::StrCat("temperature is ", s.temperature,
                                         "; it must be finite and at least 0"));
  }
  if (!(s.top_p > 0 && s.top_p <= 1)) {
    return Invalid(request, absl::StrCat("top_p is ", s.top_p, "; it must be in (0, 1]"));
  }
  if (s.stop_token_ids.size() > kMaxStopTokenIds) {
    return Invalid(request, absl::StrCat("more than ", kMaxStopTokenIds, " stop token ids"));
  }
  if (s.stop_strings.size() > kMaxStopStrings) {
    return Invalid(request, absl::StrCat("more than ", kMaxStopStrings, " stop strings"));
  }
  for (const std::string& stop : s.stop_strings) {
    if (stop.empty() || stop.size() > kMaxStopStringBytes) {
      return Invalid(request, absl::StrCat("a stop string has ", stop.size(),
                                           " bytes; it must have 1 to ", kMaxStopStringBytes));
    }
  }
  return absl::OkStatus();
}

}  // namespace eventide
