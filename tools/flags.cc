#include "tools/flags.h"

#include <bit>
#include <charconv>
#include <cmath>
#include <optional>
#include <set>

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

struct Span {
  uint64_t first = 0, last = 0;
};

std::optional<Span> ParseSpan(const std::string& text) {
  const size_t dots = text.find("..");
  const std::optional<uint64_t> first = ParseWhole(text.substr(0, dots));
  const std::optional<uint64_t> last =
      dots == std::string::npos ? first : ParseWhole(text.substr(dots + 2));
  if (!first || !last || *first > *last) return {};
  return Span{*first, *last};
}

std::optional<double> ParseReal(const std::string& text) {
  double value = 0;
  if (text.empty() || text.find_first_not_of("0123456789.eE+-") != std::string::npos ||
      !absl::SimpleAtod(text, &value) || !std::isfinite(value)) {
    return {};
  }
  return value;
}

class HelpFormatter : public CLI::Formatter {
  std::string make_option_opts(const CLI::Option* option) const override {
    std::string text = CLI::Formatter::make_option_opts(option);
    const std::string value = option->get_default_str();
    for (const std::string& shown : {"=" + value, " [" + value + "]"}) {  // of older and of newer ones
      const size_t at = value.empty() ? std::string::npos : text.find(shown);
      if (at != std::string::npos) return text.erase(at, shown.size());
    }
    return text;
  }

  std::string make_option_desc(const CLI::Option* option) const override {
    std::string value = option->get_default_str();
    if (value.starts_with('[')) value = value.substr(1, value.size() - 2);  // a list
    const std::string& text = option->get_description();
    return value.empty() ? text : absl::StrCat(text, " (default ", value, ")");
  }
};

}  // namespace

std::shared_ptr<CLI::Formatter> DefaultsBehindTexts() {
  return std::make_shared<HelpFormatter>();
}

CLI::Validator WholeNumber(uint64_t low, uint64_t high) {
  const std::string range = absl::StrCat(low, " to ", high);
  const auto check = [=](std::string& text) {
    const std::optional<uint64_t> value = ParseWhole(text);
    if (value && *value >= low && *value <= high) return std::string();
    return absl::StrCat("'", text, "' is not a whole number from ", range);
  };
  return CLI::Validator(check, high >= kUnbounded ? "" : range);
}

CLI::Validator WholeNumbers(uint64_t low, uint64_t high) {
  const std::string range = absl::StrCat(low, " to ", high);
  const auto check = [=](std::string& text) {
    const std::optional<Span> span = ParseSpan(text);
    if (span && span->first >= low && span->last <= high) return std::string();
    return absl::StrCat("'", text, "' is neither a whole number from ", range,
                        " nor two of them, FIRST..LAST");
  };
  return CLI::Validator(check, range);
}

std::vector<int> ExpandRanges(const std::vector<std::string>& ranges) {
  std::set<int> values;
  for (const std::string& range : ranges) {
    const std::optional<Span> span = ParseSpan(range);
    for (uint64_t i = span->first; i <= span->last; ++i) values.insert(static_cast<int>(i));
  }
  return {values.begin(), values.end()};
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
