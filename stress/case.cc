#include "stress/case.h"

#include <iterator>

#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace eventide {
namespace {

// Fields whose numbers have names.
struct FieldNames {
  const char* field;
  std::vector<std::string> names;
};
const std::vector<FieldNames>& Named() {
  static const std::vector<FieldNames> named = {{"policy", {"static", "ticket", "auto"}},
                                                {"dtype", {"float32", "bfloat16", "float16"}}};
  return named;
}

const std::vector<std::string>* NamesOf(const std::string& field) {
  for (const FieldNames& names : Named()) {
    if (field == names.field) return &names.names;
  }
  return nullptr;
}

absl::StatusOr<int64_t> ParseValue(const std::string& field, absl::string_view text) {
  int64_t value = 0;
  if (absl::SimpleAtoi(text, &value)) return value;
  if (const std::vector<std::string>* names = NamesOf(field)) {
    for (size_t i = 0; i < names->size(); ++i) {
      if ((*names)[i] == text) return static_cast<int64_t>(i);
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", field, "=", text, "': not a whole number or a known name"));
}

}  // namespace

int64_t StressCase::At(const std::string& name, size_t index, int64_t otherwise) const {
  const auto found = fields_.find(name);
  return found == fields_.end() || index >= found->second.size() ? otherwise : found->second[index];
}

size_t StressCase::Count(const std::string& name) const {
  const auto found = fields_.find(name);
  return found == fields_.end() ? 0 : found->second.size();
}

std::string StressCase::ToText() const {
  std::string text = kind_;
  for (const auto& [name, values] : fields_) {
    const std::vector<std::string>* names = NamesOf(name);
    absl::StrAppend(
        &text, " ", name, "=", absl::StrJoin(values, ",", [&](std::string* out, int64_t value) {
          const bool named =
              names != nullptr && value >= 0 && value < static_cast<int64_t>(names->size());
          absl::StrAppend(out, named ? (*names)[static_cast<size_t>(value)] : absl::StrCat(value));
        }));
  }
  return text;
}

absl::StatusOr<StressCase> StressCase::FromText(const std::string& text) {
  const std::vector<std::string> words = absl::StrSplit(text, ' ', absl::SkipEmpty());
  if (words.empty()) return absl::InvalidArgumentError("an empty case: it begins with its kind");
  StressCase result(words[0]);
  for (size_t i = 1; i < words.size(); ++i) {
    const size_t equals = words[i].find('=');
    if (equals == std::string::npos || equals == 0) {
      return absl::InvalidArgumentError(absl::StrCat("'", words[i], "' is not NAME=VALUE"));
    }
    const std::string name = words[i].substr(0, equals);
    if (result.Has(name)) return absl::InvalidArgumentError(absl::StrCat(name, " comes twice"));
    std::vector<int64_t> values;
    const std::string list = words[i].substr(equals + 1);
    for (absl::string_view part : absl::StrSplit(list, ',', absl::SkipEmpty())) {
      ASSIGN_OR_RETURN(const int64_t value, ParseValue(name, part));
      values.push_back(value);
    }
    result.SetList(name, std::move(values));
  }
  return result;
}

}  // namespace eventide
