// llama2.c tensors under their Hugging Face names: stacks are cut into layers.
#include <utility>

#include "core/status.h"
#include "models/weights_mapped.h"

namespace eventide {
namespace {

struct NamePair {
  const char* file;
  const char* hf;  // below model.layers.N where the tensor is stacked
  bool stacked;
};

// freq_cis_* are tables that rope recomputes.
constexpr NamePair kNames[] = {
    {"token_embedding", "model.embed_tokens.weight", false},
    {"rms_final", "model.norm.weight", false},
    {"wcls", "lm_head.weight", false},
    {"rms_att", "input_layernorm.weight", true},
    {"wq", "self_attn.q_proj.weight", true},
    {"wk", "self_attn.k_proj.weight", true},
    {"wv", "self_attn.v_proj.weight", true},
    {"wo", "self_attn.o_proj.weight", true},
    {"rms_ffn", "post_attention_layernorm.weight", true},
    {"w1", "mlp.gate_proj.weight", true},
    {"w2", "mlp.down_proj.weight", true},
    {"w3", "mlp.up_proj.weight", true},
};

}  // namespace

absl::StatusOr<std::unique_ptr<WeightSource>> OpenLlama2c(const std::string& path) {
  ASSIGN_OR_RETURN(std::shared_ptr<const Llama2cFile> file, Llama2cFile::Open(path));
  absl::StatusOr<ModelConfig> config = ConfigFromLlama2c(file->header());
  if (!config.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", config.status().message()));
  }
  std::vector<WeightView> views;
  for (const Llama2cTensor& tensor : file->tensors()) {
    const absl::string_view name = tensor.name;
    for (const NamePair& pair : kNames) {
      if (name != pair.file) continue;
      for (int layer = 0; layer < (pair.stacked ? config->layers : 1); ++layer) {
        WeightView view;
        view.info.name =
            pair.stacked ? absl::StrCat("model.layers.", layer, ".", pair.hf) : pair.hf;
        view.info.shape.assign(tensor.shape.begin() + (pair.stacked ? 1 : 0), tensor.shape.end());
        view.data = file->data(tensor);
        view.base = layer * view.info.Elements();
        if (name == "wq" || name == "wk") view.paired_head_dim = config->head_dim;
        views.push_back(std::move(view));
      }
    }
  }
  return std::make_unique<MappedWeights>(*std::move(config), file, std::move(views));
}

}  // namespace eventide
