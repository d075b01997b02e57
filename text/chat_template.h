// Prompts of chat models. Checkpoints describe theirs as Jinja programs; Eventide runs no Jinja but
// recognises the programs that write one question the ChatML way, and refuses all others:
//
//   <|im_start|>system\n...<|im_end|>\n<|im_start|>user\n...<|im_end|>\n<|im_start|>assistant\n
//
// What a program does with tools, with past answers and with switches that nobody sets may be
// anything: one question never gets there.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace eventide {

class ChatTemplate {
 public:
  // Everything that a program would print for one question must be understood, else it is an error
  // that names the part.
  static absl::StatusOr<ChatTemplate> Parse(absl::string_view jinja);

  // One question, up to where the answer begins. Without `system` the template's own, if it has
  // one.
  std::string Ask(absl::string_view question, const std::optional<std::string>& system) const;

  const std::optional<std::string>& default_system() const { return default_system_; }

 private:
  std::optional<std::string> default_system_;
};

// The token that ends a turn.
inline constexpr char kChatTurnEnd[] = "<|im_end|>";

// The text of a checkpoint's template: tokenizer.chat_template of a .gguf file, chat_template.jinja
// or the chat_template of tokenizer_config.json in a folder (or beside a file in it). NotFound
// without one.
absl::StatusOr<std::string> ReadChatTemplate(const std::string& path);

}  // namespace eventide
