// eventide export: any model as a Hugging Face folder.
#include "models/export.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/status.h"
#include "formats/gguf.h"
#include "text/chat_template.h"
#include "text/hf_export.h"
#include "tools/engine_flags.h"
#include "tools/flags.h"
#include "tools/interrupt.h"

namespace eventide {
namespace {

struct ExportFlags {
  EngineFlags engine;
  std::string output;
};

// Of a Hugging Face folder, as they are.
std::vector<ExportFile> CopiedFiles(const std::string& folder) {
  std::vector<ExportFile> files;
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                           "added_tokens.json", "vocab.json", "merges.txt", "tokenizer.model",
                           "generation_config.json", "chat_template.jinja"}) {
    std::ifstream file(std::filesystem::path(folder) / name, std::ios::binary);
    if (!file) continue;
    std::stringstream content;
    content << file.rdbuf();
    files.push_back({name, content.str()});
  }
  return files;
}

// The tokenizer and what belongs to it. Without one, or with one that Hugging Face's files cannot
// express, the weights alone are exported and stderr says so.
std::vector<ExportFile> TokenizerFiles(const std::string& model) {
  std::error_code error;
  if (std::filesystem::is_directory(model, error)) return CopiedFiles(model);
  absl::Status why = absl::NotFoundError("it has none of its own");
  if (absl::EndsWith(model, ".gguf")) {
    const auto make = [&]() -> absl::StatusOr<std::vector<TokenizerFile>> {
      ASSIGN_OR_RETURN(const auto file, GgufFile::Open(model));
      ASSIGN_OR_RETURN(const BytePairVocab vocab, BytePairVocabFromGguf(*file));
      return HfTokenizerFiles(vocab, ReadChatTemplate(model).value_or(""));
    };
    const absl::StatusOr<std::vector<TokenizerFile>> made = make();
    std::vector<ExportFile> files;
    if (made.ok()) {
      for (const TokenizerFile& file : *made) files.push_back({file.name, file.content});
      return files;
    }
    why = made.status();
  }
  if (!absl::StartsWith(model, "random:")) {
    std::fprintf(stderr, "eventide: no tokenizer is written for %s: %s\n", model.c_str(),
                 std::string(why.message()).c_str());
  }
  return {};
}

absl::Status RunExport(ExportFlags& flags) {
  flags.engine.device = "cpu";
  ASSIGN_OR_RETURN(const OpenedModel model, OpenFlaggedModel(flags.engine));
  Progress progress;
  int64_t bytes = 0;
  ExportOptions options;
  options.files = TokenizerFiles(flags.engine.model);
  std::vector<std::string> names;
  for (const ExportFile& file : options.files) names.push_back(file.name);
  options.progress = [&](int64_t done, int64_t total) {
    bytes = total;
    progress.Bar("writing", static_cast<double>(done), static_cast<double>(total),
                 absl::StrCat(total >> 20, " MiB"));
  };
  options.stop = [] { return PendingInterrupt() != 0; };
  DeferFirstInterrupt();
  RETURN_IF_ERROR(ExportHuggingFace(*model.source, model.storage, flags.output, options));
  progress.Clear();
  if (flags.engine.json) {
    return PrintJson({{"output", flags.output},
                      {"dtype", DTypeName(model.storage)},
                      {"bytes", bytes},
                      {"files", names}});
  }
  const std::string with = names.empty() ? "" : absl::StrCat(", with ", absl::StrJoin(names, ", "));
  return PrintText(
      absl::StrCat("wrote ", flags.output, " (", DTypeName(model.storage), ")", with, "\n"));
}

}  // namespace

CommandBody AddExport(CLI::App* app) {
  auto flags = std::make_shared<ExportFlags>();
  AddModelFlags(app, &flags->engine);
  app->add_option("--output,-o", flags->output, "Folder to create")->required()->check(NotEmpty());
  app->footer("Example:\n  eventide export --model random:test-llama@3 --output /tmp/test-llama");
  return [=] { return RunExport(*flags); };
}

}  // namespace eventide
