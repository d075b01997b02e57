// Request traces: when requests came, how long their prompts and answers were. Two formats, told
// apart by their first character:
//   * CSV with the header TIMESTAMP,ContextTokens,GeneratedTokens (as Azure published theirs); a
//   time is a
//     date ("2023-11-16 18:15:46.6805900", UTC offset allowed) or a number of seconds.
//   * JSON lines {"timestamp": ms, "input_length", "output_length", "hash_ids": [...]} (as
//   Mooncake's):
//     equal hash ids stand for equal blocks of 512 prompt tokens. Our own addition: "priority", 0
//     if absent.
// Traces carry no text: prompts are synthesised, the same ones in every run and on every machine.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "serve/request.h"

namespace eventide {

inline constexpr uint64_t kHashBlockTokens = 512;  // prompt tokens that a hash id stands for

struct TraceRequest {
  int64_t arrival_ns = 0;  // after the trace's first request
  uint64_t prompt_tokens = 0;
  uint64_t output_tokens = 0;
  std::vector<uint64_t> hash_ids;  // of the prompt's blocks; may be empty
  int32_t priority = 0;
};

struct Trace {
  std::vector<TraceRequest> requests;  // by arrival
  // Lengths are the file's times scale_to / scale_from (FitTrace).
  uint64_t scale_to = 1, scale_from = 1;
};

// `name` is used in errors. At most `limit` requests, the first of the file (0: all). A trace
// without requests, a malformed line or a length above 2^31 is an error that names the line.
absl::StatusOr<Trace> ParseTrace(std::string_view text, const std::string& name,
                                 uint64_t limit = 0);
absl::StatusOr<Trace> ReadTrace(const std::string& path, uint64_t limit = 0);

// If the longest request (prompt + answer) exceeds `max_model_len`, scales all lengths by the same
// factor, max_model_len / longest, rounded down but at least 1 token; hash blocks too, so that what
// was shared still is. Returns the factor, 1 if nothing was changed. Answers of 0 tokens become 1
// in any case, empty prompts too: no engine can serve less.
absl::StatusOr<double> FitTrace(Trace* trace, uint64_t max_model_len);

// Makes prompts of ordinary tokens.
class PromptSynthesizer {
 public:
  // `special` tokens (beginning, end, control, …) are never used.
  static absl::StatusOr<PromptSynthesizer> Create(uint32_t vocab_size,
                                                  std::span<const TokenId> special,
                                                  uint64_t seed = 0);
  // Token p is a hash of (block's hash id, offset) where there is one, else of (index, p). Scaled
  // traces have scaled blocks.
  std::vector<TokenId> Prompt(const Trace& trace, uint64_t index) const;

 private:
  PromptSynthesizer(std::vector<TokenId> ordinary, uint64_t seed)
      : ordinary_(std::move(ordinary)), seed_(seed) {}
  std::vector<TokenId> ordinary_;
  uint64_t seed_;
};

}  // namespace eventide
