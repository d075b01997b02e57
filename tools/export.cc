// eventide export: any model as a Hugging Face folder.
#include "models/export.h"

#include "absl/strings/str_cat.h"
#include "core/status.h"
#include "tools/engine_flags.h"
#include "tools/flags.h"

namespace eventide {
namespace {

struct ExportFlags {
  EngineFlags engine;
  std::string output;
};

absl::Status RunExport(ExportFlags& flags) {
  flags.engine.device = "cpu";
  ASSIGN_OR_RETURN(const OpenedModel model, OpenFlaggedModel(flags.engine));
  Progress progress;
  int64_t bytes = 0;
  ExportOptions options;
  options.progress = [&](int64_t done, int64_t total) {
    bytes = total;
    progress.Bar("writing", static_cast<double>(done), static_cast<double>(total),
                 absl::StrCat(total >> 20, " MiB"));
  };
  RETURN_IF_ERROR(ExportHuggingFace(*model.source, model.storage, flags.output, options));
  progress.Clear();
  if (flags.engine.json) {
    return PrintJson(
        {{"output", flags.output}, {"dtype", DTypeName(model.storage)}, {"bytes", bytes}});
  }
  return PrintText(absl::StrCat("wrote ", flags.output, " (", DTypeName(model.storage), ")\n"));
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
