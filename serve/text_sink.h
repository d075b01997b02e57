// Where a request's tokens become text. The engine knows only this; the tokenizer's stream decoder
// and stop string matcher stand behind it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "serve/request.h"

namespace eventide {

struct TextDelta {
  std::string text;  // ready to be shown: complete characters, no possible start of a stop string
  bool stopped = false;  // a stop string is complete: the request ends with this token
};

// One per request; lives through preemption, sees each generated token once, in order.
class TextSink {
 public:
  virtual ~TextSink() = default;
  // An error (a token that the tokenizer does not have) ends the request.
  virtual absl::StatusOr<TextDelta> Append(TokenId token) = 0;
  // What was held back, when the request ends without a stop string.
  virtual std::string Finish() = 0;
};

// An error refuses the request.
using TextSinkFactory = std::function<absl::StatusOr<std::unique_ptr<TextSink>>(const Request&)>;

}  // namespace eventide
