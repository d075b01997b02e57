// What a user asks for and what comes back: the nouns of serving. Lengths are in tokens, times in
// nanoseconds of the engine's clock.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace eventide {

using TokenId = int32_t;

struct SamplingParams {
  uint32_t max_tokens = 16;  // generated tokens, at least 1; also cut by the model's length
  uint32_t min_tokens = 0;   // a stop token does not end the request before so many
  float temperature = 1.0f;  // 0: greedy
  uint32_t top_k = 0;        // 0: off
  float top_p = 1.0f;        // 1: off
  // Key of the counter-based random numbers. Absent: the engine's seed and a hash of the request's
  // id, so that a request's output depends on neither arrival order nor neighbours.
  std::optional<uint64_t> seed = std::nullopt;
  std::vector<TokenId> stop_token_ids = {};  // beside the model's own end-of-sequence tokens
  std::vector<std::string> stop_strings =
      {};                   // found by the host, min_tokens or not; costs up to two surplus steps
  bool ignore_eos = false;  // the model's end-of-sequence tokens do not end the request
};

struct Request {
  std::string id;               // unique among requests that have no outcome yet
  std::vector<TokenId> prompt;  // at least one token
  SamplingParams sampling;
  int32_t priority = 0;               // lower is served first; equal: in order of arrival
  std::optional<int64_t> arrival_ns;  // default: when it is added
};

// Who goes first. A request is never preempted for one that comes after it in this order.
struct OrderKey {
  int32_t priority = 0;
  uint64_t sequence = 0;  // order of arrival, unique
  friend auto operator<=>(const OrderKey&, const OrderKey&) = default;
};

enum class FinishReason {
  kNone,    // not finished
  kStop,    // end-of-sequence, stop token or stop string
  kLength,  // max_tokens or the model's length
  kAbort,   // cancelled
  kError,   // a step failed, the runner broke its contract, or no logit was a number
};

// Of logits that are no numbers; `where` begins the sentence.
absl::Status NoNumbers(absl::string_view where);

// "stop", "length", "abort", "error"; "" for kNone.
const char* FinishReasonName(FinishReason reason);

// What one call of a request's callback says. Every accepted request gets exactly one output with
// `finish_reason` other than kNone, and none after it.
struct RequestOutput {
  std::string id;
  std::vector<TokenId> tokens;  // new since the last output
  std::string text;             // new since the last output; empty without a TextSink
  FinishReason finish_reason = FinishReason::kNone;
  absl::Status status;  // why, for kError
  uint64_t prompt_tokens = 0;
  uint64_t cached_tokens = 0;  // of the prompt: their KV was there already
  uint64_t output_tokens = 0;  // all so far
  // With the outcome: from arrival to the first token, and per token after it; 0 without such
  // tokens.
  double ttft_seconds = 0;
  double tpot_seconds = 0;
};

// Called on the thread that calls the engine. It may add and cancel requests.
using OutputCallback = std::function<void(const RequestOutput&)>;

// Refuses what no model could serve (values out of range, empty prompt); names the field. What
// depends on the model and the KV pool is checked by Engine::AddRequest.
absl::Status ValidateRequest(const Request& request);

}  // namespace eventide
