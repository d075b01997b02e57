// Real models that are fetched, not stored: where tests look for them.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "tests/support/test.h"

namespace eventide {

// SmolLM2-135M-Instruct as GGUF, where scripts/quickstart puts it. Without it: says so as Skip
// does, and returns nothing.
inline std::optional<std::string> SmolLm2Path() {
  const std::string path = SourceFile(".cache/models/SmolLM2-135M-Instruct.gguf");
  if (std::filesystem::exists(path)) return path;
  Skip("no " + path + "; scripts/quickstart fetches it");
  return std::nullopt;
}

}  // namespace eventide
