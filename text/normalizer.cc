#include "text/normalizer.h"

#include "absl/strings/str_replace.h"

namespace eventide {

std::string Normalizer::Apply(absl::string_view valid_text) const {
  std::string text(valid_text);
  for (const Step& step : steps_) {
    if (text.empty()) break;
    switch (step.kind) {
      case Step::kForm:
        text = NormalizeUnicode(text, step.form);
        break;
      case Step::kPrepend:
        text.insert(0, step.to);
        break;
      case Step::kReplace:
        text = absl::StrReplaceAll(text, {{step.from, step.to}});
        break;
    }
  }
  return text;
}

}  // namespace eventide
