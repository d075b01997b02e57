#include "serve/trace.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/status.h"
#include "serve/hash.h"

namespace eventide {
namespace {

constexpr uint64_t kMaxLength = uint64_t{1} << 31;  // tokens
constexpr uint64_t kMaxFileBytes = uint64_t{1} << 30;
constexpr double kMaxSeconds = 4e9;  // nanoseconds stay far below 2^63
constexpr absl::string_view kHeader = "TIMESTAMP,ContextTokens,GeneratedTokens";

absl::string_view View(std::string_view text) {
  return {text.data(), text.size()};
}

std::optional<int64_t> SecondsToNs(double seconds) {
  if (!std::isfinite(seconds) || std::abs(seconds) > kMaxSeconds) return std::nullopt;
  return std::llround(seconds * 1e9);
}

// Fixed-width digits of a date at text[at...]; nullopt for anything but digits.
std::optional<int> Digits(absl::string_view text, size_t at, size_t count) {
  if (text.size() < at + count) return std::nullopt;
  int value = 0;
  for (char c : text.substr(at, count)) {
    if (!absl::ascii_isdigit(c)) return std::nullopt;
    value = value * 10 + (c - '0');
  }
  return value;
}

// "+hh:mm", "-hh:mm", "Z" or nothing, in seconds.
std::optional<int64_t> ParseOffset(absl::string_view text) {
  if (text.empty() || text == "Z") return 0;
  auto hours = Digits(text, 1, 2), minutes = Digits(text, 4, 2);
  if (text.size() != 6 || (text[0] != '+' && text[0] != '-') || text[3] != ':' || !hours ||
      !minutes) {
    return std::nullopt;
  }
  return (text[0] == '-' ? -1 : 1) * (*hours * 3600 + *minutes * 60);
}

// "YYYY-MM-DD hh:mm:ss[.fraction][offset]", nanoseconds since 1970.
std::optional<int64_t> ParseDate(absl::string_view text) {
  auto year = Digits(text, 0, 4), month = Digits(text, 5, 2), day = Digits(text, 8, 2);
  auto hour = Digits(text, 11, 2), minute = Digits(text, 14, 2), second = Digits(text, 17, 2);
  if (!year || !month || !day || !hour || !minute || !second) return std::nullopt;
  if (text[4] != '-' || text[7] != '-' || (text[10] != ' ' && text[10] != 'T') || text[13] != ':' ||
      text[16] != ':' || *hour > 23 || *minute > 59 || *second > 60) {
    return std::nullopt;
  }
  const std::chrono::year_month_day date{std::chrono::year(*year),
                                         std::chrono::month(static_cast<unsigned>(*month)),
                                         std::chrono::day(static_cast<unsigned>(*day))};
  // Years outside would overflow 64-bit nanoseconds.
  if (!date.ok() || *year < 1900 || *year > 2200) return std::nullopt;
  int64_t ns = 0;
  size_t at = 19;
  if (at < text.size() && text[at] == '.') {
    int64_t unit = 100'000'000;
    for (++at; at < text.size() && absl::ascii_isdigit(text[at]); ++at, unit /= 10) {
      ns += (text[at] - '0') * unit;
    }
  }
  auto offset = ParseOffset(text.substr(at));
  if (!offset) return std::nullopt;
  const int64_t days = std::chrono::sys_days(date).time_since_epoch().count();
  const int64_t seconds = days * 86400 + *hour * 3600 + *minute * 60 + *second - *offset;
  return seconds * 1'000'000'000 + ns;
}

std::optional<int64_t> ParseTime(absl::string_view text) {
  double seconds;
  if (absl::SimpleAtod(text, &seconds)) return SecondsToNs(seconds);
  return ParseDate(text);
}

std::optional<TraceRequest> ParseCsvLine(absl::string_view line) {
  std::vector<absl::string_view> fields = absl::StrSplit(line, ',');
  if (fields.size() != 3) return std::nullopt;
  TraceRequest request;
  std::optional<int64_t> time = ParseTime(absl::StripAsciiWhitespace(fields[0]));
  if (!time || !absl::SimpleAtoi(absl::StripAsciiWhitespace(fields[1]), &request.prompt_tokens) ||
      !absl::SimpleAtoi(absl::StripAsciiWhitespace(fields[2]), &request.output_tokens)) {
    return std::nullopt;
  }
  request.arrival_ns = *time;
  return request;
}

std::optional<TraceRequest> ParseJsonLine(absl::string_view line) {
  const auto json =
      nlohmann::json::parse(line.begin(), line.end(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return std::nullopt;
  auto time = json.find("timestamp"), in = json.find("input_length"),
       out = json.find("output_length");
  auto ids = json.find("hash_ids");
  if (time == json.end() || !time->is_number() || in == json.end() || !in->is_number_unsigned() ||
      out == json.end() || !out->is_number_unsigned()) {
    return std::nullopt;
  }
  TraceRequest request;
  std::optional<int64_t> ns = SecondsToNs(time->get<double>() * 1e-3);
  if (!ns) return std::nullopt;
  request.arrival_ns = *ns;
  request.prompt_tokens = in->get<uint64_t>();
  request.output_tokens = out->get<uint64_t>();
  if (auto priority = json.find("priority"); priority != json.end()) {
    if (!priority->is_number_integer()) return std::nullopt;
    const auto value = priority->get<int64_t>();
    if (value != static_cast<int32_t>(value)) return std::nullopt;
    request.priority = static_cast<int32_t>(value);
  }
  if (ids == json.end()) return request;
  if (!ids->is_array()) return std::nullopt;
  for (const auto& id : *ids) {
    if (!id.is_number_unsigned()) return std::nullopt;
    request.hash_ids.push_back(id.get<uint64_t>());
  }
  return request;
}

}  // namespace

absl::StatusOr<Trace> ParseTrace(std::string_view text, const std::string& name, uint64_t limit) {
  Trace trace;
  const absl::string_view all = absl::StripLeadingAsciiWhitespace(View(text));
  const bool json = !all.empty() && all[0] == '{';
  bool header = json;
  uint64_t number = static_cast<uint64_t>(std::count(text.data(), all.data(), '\n'));
  for (absl::string_view line : absl::StrSplit(all, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty()) continue;
    if (!header) {
      if (line != kHeader) {
        return absl::InvalidArgumentError(absl::StrCat(name, ": neither a CSV trace (first line '",
                                                       kHeader, "') nor JSON lines"));
      }
      header = true;
      continue;
    }
    if (limit != 0 && trace.requests.size() == limit) break;
    std::optional<TraceRequest> request = json ? ParseJsonLine(line) : ParseCsvLine(line);
    if (!request || request->prompt_tokens > kMaxLength || request->output_tokens > kMaxLength) {
      return absl::InvalidArgumentError(absl::StrCat(
          name, ", line ", number, ": not a trace request: '", line.substr(0, 80), "'"));
    }
    trace.requests.push_back(*std::move(request));
  }
  if (trace.requests.empty())
    return absl::InvalidArgumentError(absl::StrCat(name, ": no requests"));
  std::stable_sort(trace.requests.begin(), trace.requests.end(),
                   [](const auto& a, const auto& b) { return a.arrival_ns < b.arrival_ns; });
  const int64_t first = trace.requests.front().arrival_ns;
  for (TraceRequest& request : trace.requests) request.arrival_ns -= first;
  return trace;
}

absl::StatusOr<Trace> ReadTrace(const std::string& path, uint64_t limit) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot open the trace '", path, "'"));
  const auto bytes = static_cast<std::streamoff>(file.tellg());
  if (bytes < 0 || static_cast<uint64_t>(bytes) > kMaxFileBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the trace '", path, "' is not a file of at most ", kMaxFileBytes, " bytes"));
  }
  std::string text(static_cast<size_t>(bytes), '\0');
  file.seekg(0);
  if (!file.read(text.data(), bytes)) {
    return absl::DataLossError(absl::StrCat("cannot read the trace '", path, "'"));
  }
  return ParseTrace(text, path, limit);
}

absl::StatusOr<double> FitTrace(Trace* trace, uint64_t max_model_len) {
  if (max_model_len < 2 || max_model_len > kMaxLength) {
    return absl::InvalidArgumentError(
        absl::StrCat("a trace cannot be fitted to a length of ", max_model_len, " tokens"));
  }
  uint64_t longest = 0;
  for (TraceRequest& request : trace->requests) {
    request.prompt_tokens = std::max<uint64_t>(request.prompt_tokens, 1);
    request.output_tokens = std::max<uint64_t>(request.output_tokens, 1);
    longest = std::max(longest, request.prompt_tokens + request.output_tokens);
  }
  if (longest <= max_model_len) return 1.0;
  // Products stay below 2^63: lengths and the model's length are at most 2^31.
  for (TraceRequest& request : trace->requests) {
    request.output_tokens = std::max<uint64_t>(request.output_tokens * max_model_len / longest, 1);
    request.output_tokens = std::min(request.output_tokens, max_model_len - 1);
    request.prompt_tokens = std::max<uint64_t>(request.prompt_tokens * max_model_len / longest, 1);
    request.prompt_tokens = std::min(request.prompt_tokens, max_model_len - request.output_tokens);
  }
  trace->scale_to = max_model_len;
  trace->scale_from = longest;
  return static_cast<double>(max_model_len) / static_cast<double>(longest);
}

absl::StatusOr<PromptSynthesizer> PromptSynthesizer::Create(uint32_t vocab_size,
                                                            std::span<const TokenId> special,
                                                            uint64_t seed) {
  std::vector<bool> excluded(vocab_size);
  for (TokenId token : special) {
    if (token >= 0 && static_cast<uint32_t>(token) < vocab_size)
      excluded[static_cast<size_t>(token)] = true;
  }
  std::vector<TokenId> ordinary;
  for (uint32_t token = 0; token < vocab_size; ++token) {
    if (!excluded[token]) ordinary.push_back(static_cast<TokenId>(token));
  }
  if (ordinary.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("no prompt can be made: all ", vocab_size, " tokens are special"));
  }
  return PromptSynthesizer(std::move(ordinary), seed);
}

std::vector<TokenId> PromptSynthesizer::Prompt(const Trace& trace, uint64_t index) const {
  const TraceRequest& request = trace.requests.at(index);
  // Two families of keys, so that a hash id never equals a request's index.
  const uint64_t own = CombineHash(CombineHash(seed_, 1), index);
  const uint64_t shared = CombineHash(seed_, 2);
  std::vector<TokenId> prompt(request.prompt_tokens);
  // Block b begins at the first token p with p * scale_from >= b * block. Lengths are at most 2^31.
  const uint64_t block = kHashBlockTokens * trace.scale_to;
  for (uint64_t p = 0; p < prompt.size(); ++p) {
    const uint64_t b = p * trace.scale_from / block;
    const uint64_t begin = (b * block + trace.scale_from - 1) / trace.scale_from;
    const uint64_t key = b < request.hash_ids.size()
                             ? CombineHash(CombineHash(shared, request.hash_ids[b]), p - begin)
                             : CombineHash(own, p);
    prompt[p] = ordinary_[key % ordinary_.size()];
  }
  return prompt;
}

}  // namespace eventide
