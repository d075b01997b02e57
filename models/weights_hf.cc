// Hugging Face folders: names are already right.
#include <algorithm>
#include <filesystem>
#include <utility>

#include "core/status.h"
#include "formats/json.h"
#include "formats/mapped_file.h"
#include "models/weights_mapped.h"

namespace eventide {
namespace {

constexpr size_t kMaxConfigBytes = 16 << 20;

// generation_config.json may name further tokens that end a sequence (chat models: end of turn).
absl::Status AddGenerationEos(const std::string& folder, ModelConfig* config) {
  const std::string path = folder + "/generation_config.json";
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxConfigBytes));
  ASSIGN_OR_RETURN(const nlohmann::json root, ParseJsonObject(text, path));
  const nlohmann::json* eos = JsonFind(root, "eos_token_id");
  if (eos == nullptr) return absl::OkStatus();
  const nlohmann::json list = eos->is_array() ? *eos : nlohmann::json::array({*eos});
  for (const nlohmann::json& id : list) {
    const nlohmann::json one = {{"eos_token_id", id}};
    absl::StatusOr<int64_t> value = JsonInteger(one, "eos_token_id", 0, config->vocab - 1);
    if (!value.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": ", value.status().message()));
    }
    if (std::find(config->eos.begin(), config->eos.end(), int(*value)) == config->eos.end()) {
      config->eos.push_back(int(*value));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelConfig> ReadConfig(const std::string& folder, bool* dtype_stated) {
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(folder + "/config.json", kMaxConfigBytes));
  absl::StatusOr<ModelConfig> parsed = ParseHfConfig(text, dtype_stated);
  if (!parsed.ok()) {
    return absl::Status(parsed.status().code(),
                        absl::StrCat(folder, "/", parsed.status().message()));
  }
  ModelConfig config = *std::move(parsed);
  RETURN_IF_ERROR(AddGenerationEos(folder, &config));
  return config;
}

}  // namespace

absl::StatusOr<std::unique_ptr<WeightSource>> OpenHuggingFaceFolder(const std::string& folder,
                                                                    PhaseLog* phases) {
  bool dtype_stated = false;
  ASSIGN_OR_RETURN(ModelConfig config,
                   InPhase(phases, "config", [&] { return ReadConfig(folder, &dtype_stated); }));
  ASSIGN_OR_RETURN(std::unique_ptr<Safetensors> files, Safetensors::OpenFolder(folder));
  std::shared_ptr<const Safetensors> file = std::move(files);
  std::vector<WeightView> views;
  for (const Safetensors::Tensor& tensor : file->tensors()) {
    WeightView view;
    view.info = {tensor.entry.name, tensor.entry.dtype, tensor.entry.shape};
    view.data = static_cast<const unsigned char*>(tensor.data);
    const bool embedding = view.info.name == "model.embed_tokens.weight";
    if (!dtype_stated && embedding && IsWeightDType(view.info.dtype)) {
      config.dtype = view.info.dtype;
    }
    views.push_back(std::move(view));
  }
  return std::make_unique<MappedWeights>(std::move(config), file, std::move(views));
}

}  // namespace eventide
