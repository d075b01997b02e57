// Reads Hugging Face's tokenizer.json: BPE models, byte-level or with byte fallback. What the file
// asks for and this code does not know is an error that names it; nothing is silently skipped.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/tokenizer.h"

namespace eventide {

// What tokenizer.json does not say (tokenizer_config.json does).
struct HfTokenizerOptions {
  std::string bos_token, eos_token;   // by name; empty: unknown
  std::optional<bool> add_bos;        // overrides the file's template
  std::vector<int32_t> more_eos_ids;  // from generation_config.json
};

// `json` is the text of a tokenizer.json; `name` is used in errors.
absl::StatusOr<std::unique_ptr<Tokenizer>> TokenizerFromHfJson(
    absl::string_view json, absl::string_view name, const HfTokenizerOptions& options = {});

// A tokenizer.json file, or a folder with one; tokenizer_config.json and generation_config.json
// next to it are read when they exist.
absl::StatusOr<std::unique_ptr<Tokenizer>> TokenizerFromHfPath(const std::string& path);

}  // namespace eventide
