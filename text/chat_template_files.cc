// ReadChatTemplate: where checkpoints keep their templates.
#include <filesystem>

#include "absl/strings/match.h"
#include "core/status.h"
#include "formats/gguf.h"
#include "text/chat_template.h"
#include "text/hf_json.h"

namespace eventide {
namespace {

absl::Status None(const std::string& path) {
  return absl::NotFoundError(absl::StrCat(path, " has no chat template"));
}

// "chat_template" is a text, or a list of named ones of which "default" is meant.
absl::StatusOr<std::string> FromConfig(const Json& config, const std::string& path) {
  const Json* value = JsonFind(config, "chat_template");
  if (value == nullptr || value->is_null()) return None(path);
  if (!value->is_array()) return JsonString(config, "chat_template", "");
  for (const Json& each : *value) {
    ASSIGN_OR_RETURN(const std::string name, JsonString(each, "name", ""));
    if (name == "default") return JsonString(each, "template", "");
  }
  return None(path);
}

}  // namespace

absl::StatusOr<std::string> ReadChatTemplate(const std::string& path) {
  if (absl::EndsWith(path, ".gguf")) {
    ASSIGN_OR_RETURN(const auto file, GgufFile::Open(path));
    if (file->Find("tokenizer.chat_template") == nullptr) return None(path);
    return file->Text("tokenizer.chat_template");
  }
  std::filesystem::path folder = path;
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error)) folder = folder.parent_path();
  const std::filesystem::path own = folder / "chat_template.jinja";
  if (std::filesystem::exists(own, error)) return ReadTokenizerFile(own.string());
  const std::filesystem::path config = folder / "tokenizer_config.json";
  if (!std::filesystem::exists(config, error)) return None(path);
  ASSIGN_OR_RETURN(const std::string text, ReadTokenizerFile(config.string()));
  ASSIGN_OR_RETURN(const Json json, ParseJsonObject(text, config.string()));
  return FromConfig(json, path);
}

}  // namespace eventide
