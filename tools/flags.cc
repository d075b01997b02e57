#include "tools/flags.h"

#include <bit>
#include <charconv>
#include <cmath>
#include <optional>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace eventide {
namespace {

constexpr uint64_t kMaxBlockSize = 1024;
constexpr uint64_t kUnbounded = INT32_MAX;  // from here on a help text does not say how far

std::optional<uint64_t> ParseWhole(const std::string& text) {
  uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || at != end || (text.size() > 1 && text[0] == '0')) return {};
  return value;
}

std::optional<double> ParseReal(const std::string& text) {
  double value = 0;
  if (text.empty() || text.find_first_not_of("0123456789.eE+-") != std::string::npos ||
      !absl::SimpleAtod(text, &value) || !std::isfinite(value)) {
    return {};
  }
  return value;
}

}  // namespace

CLI::Validator WholeNumber(uint64_t low, uint64_t high) {
  const std::string range = absl::StrCat(low, " to ", high);
  const auto check = [=](std::string& text) {
    const std::optional<uint64_t> value = ParseWhole(text);
    if (value && *value >= low && *value <= high) return std::string();
    return absl::StrCat("'", text, "' is not a whole number from ", range);
  };
  return CLI::Validator(check, high >= kUnbounded ? "" : range);
}

CLI::Validator RealNumber(double low, double high) {
  const std::string range = absl::StrCat(low, " to ", high);
  const auto check = [=](std::string& text) {
    const std::optional<double> value = ParseReal(text);
    if (value && *value >= low && *value <= high) return std::string();
    return absl::StrCat("'", text, "' is not a number from ", range);
  };
  return CLI::Validator(check, high >= double{kUnbounded} ? "" : range);
}

CLI::Validator BlockSize() {
  const auto check = [](std::string& text) {
    const std::optional<uint64_t> value = ParseWhole(text);
    if (value && *value <= kMaxBlockSize && std::has_single_bit(*value)) return std::string();
    return absl::StrCat("'", text, "' is not a power of two from 1 to ", kMaxBlockSize);
  };
  return CLI::Validator(check, "a power of two");
}

CLI::Validator NotEmpty() {
  const auto check = [](std::string& text) {
    return text.empty() ? std::string("the name is empty") : std::string();
  };
  return CLI::Validator(check, "");
}

}  // namespace eventide
