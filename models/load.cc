#include "models/load.h"

#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "core/status.h"
#include "formats/mapped_file.h"
#include "models/presets.h"
#include "models/random_weights.h"
#include "models/weights_mapped.h"

namespace eventide {
namespace {

std::string AcceptedForms() {
  return absl::StrCat(
      "a model is one of: a Hugging Face folder (config.json and *.safetensors), a .gguf file, a "
      "llama2.c .bin file, or random:<preset>[@seed] with preset one of ",
      absl::StrJoin(PresetNames(), ", "));
}

// By content where it tells, else by the end of the name.
absl::StatusOr<std::unique_ptr<WeightSource>> OpenFile(const std::string& path,
                                                      PhaseLog* phases) {
  ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  if (absl::StartsWith(file.text(), "GGUF") || absl::EndsWith(path, ".gguf")) {
    return OpenGguf(path, phases);
  }
  if (absl::EndsWith(path, ".bin")) return OpenLlama2c(path);
  if (absl::EndsWith(path, ".safetensors") || absl::EndsWith(path, "config.json")) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": give the folder that holds this file and its config.json"));
  }
  return absl::InvalidArgumentError(absl::StrCat(path, ": not a known file; ", AcceptedForms()));
}

absl::StatusOr<std::unique_ptr<WeightSource>> OpenUnchecked(const std::string& spec,
                                                           PhaseLog* phases) {
  absl::string_view rest = spec;
  if (absl::ConsumePrefix(&rest, "random:")) {
    return InPhase(phases, "config", [&] { return OpenRandomWeights(rest); });
  }
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(spec, error);
  if (std::filesystem::is_directory(status)) return OpenHuggingFaceFolder(spec, phases);
  if (std::filesystem::is_regular_file(status)) return OpenFile(spec, phases);
  return absl::NotFoundError(
      absl::StrCat("'", spec, "' is neither a file nor a folder; ", AcceptedForms()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<WeightSource>> OpenModel(const std::string& spec,
                                                        PhaseLog* phases) {
  const PhaseSpan span(phases, "weights_map");
  ASSIGN_OR_RETURN(std::unique_ptr<WeightSource> source, OpenUnchecked(spec, phases));
  if (absl::Status status = CheckComplete(*source); !status.ok()) {
    return absl::Status(status.code(), absl::StrCat(spec, ": ", status.message()));
  }
  return source;
}

}  // namespace eventide
