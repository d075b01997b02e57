// GGUF tensors under their Hugging Face names.
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "core/status.h"
#include "models/weights_mapped.h"

namespace eventide {
namespace {

struct NamePair {
  const char* gguf;
  const char* hf;
};

constexpr NamePair kGlobal[] = {
    {"token_embd", "model.embed_tokens"},
    {"output_norm", "model.norm"},
    {"output", "lm_head"},
};

constexpr NamePair kLayer[] = {
    {"attn_norm", "input_layernorm"},    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},      {"attn_v", "self_attn.v_proj"},
    {"attn_q_norm", "self_attn.q_norm"}, {"attn_k_norm", "self_attn.k_norm"},
    {"attn_output", "self_attn.o_proj"}, {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
};

// Stacks of experts, and each expert's tensor in qwen3_moe and in mixtral.
struct ExpertNames {
  const char* gguf;
  const char* qwen;
  const char* mixtral;
};
constexpr ExpertNames kExperts[] = {
    {"ffn_gate_exps", "gate_proj", "w1"},
    {"ffn_up_exps", "up_proj", "w3"},
    {"ffn_down_exps", "down_proj", "w2"},
};

class Mapper {
 public:
  Mapper(const GgufFile& file, const ModelConfig& config)
      : config_(config),
        mixtral_(config.family == "mixtral"),
        // Converters reorder q and k rows for architecture "llama" only.
        paired_(config.family == "llama" || config.family == "mixtral") {
    for (const GgufTensor& tensor : file.tensors()) {
      if (tensor.name != "rope_freqs.weight") Add(tensor);  // ConfigFromGguf has read that one
    }
  }

  std::vector<WeightView> Take() { return std::move(views_); }

 private:
  void Add(const GgufTensor& tensor) {
    const size_t dot = tensor.name.rfind('.');
    const std::string stem = tensor.name.substr(0, dot);
    const std::string suffix = dot == std::string::npos ? "" : tensor.name.substr(dot);
    for (const NamePair& pair : kGlobal) {
      if (stem == pair.gguf) return Push(tensor, pair.hf + suffix, 0);
    }
    absl::string_view rest = stem;
    const size_t layer_end = rest.find('.', 4);
    uint32_t layer = 0;
    if (!absl::ConsumePrefix(&rest, "blk.") || layer_end == absl::string_view::npos ||
        !absl::SimpleAtoi(rest.substr(0, layer_end - 4), &layer)) {
      return Push(tensor, tensor.name, 0);  // unknown: reported under its own name
    }
    AddLayer(tensor, absl::StrCat("model.layers.", layer, "."),
             std::string(rest.substr(layer_end - 3)), suffix);
  }

  void AddLayer(const GgufTensor& tensor, const std::string& layer, const std::string& stem,
                const std::string& suffix) {
    for (const NamePair& pair : kLayer) {
      if (stem != pair.gguf) continue;
      const bool rotated = stem == "attn_q" || stem == "attn_k";
      return Push(tensor, layer + pair.hf + suffix, paired_ && rotated ? config_.head_dim : 0);
    }
    const std::string moe = layer + (mixtral_ ? "block_sparse_moe." : "mlp.");
    if (stem == "ffn_gate_inp") return Push(tensor, moe + "gate" + suffix, 0);
    for (const ExpertNames& names : kExperts) {
      if (stem != names.gguf || tensor.shape.size() != 3) continue;
      return PushExperts(tensor, moe + "experts.",
                         absl::StrCat(".", mixtral_ ? names.mixtral : names.qwen, suffix));
    }
    Push(tensor, tensor.name, 0);
  }

  WeightView View(const GgufTensor& tensor, std::string name) {
    WeightView view;
    view.info = {std::move(name), DType::kF32, tensor.shape};
    view.data = tensor.data;
    if (tensor.type == QuantType::kF16) {
      view.info.dtype = DType::kF16;
    } else if (tensor.type == QuantType::kBF16) {
      view.info.dtype = DType::kBF16;
    } else if (tensor.type != QuantType::kF32) {
      view.quant = tensor.type;
    }
    return view;
  }

  void Push(const GgufTensor& tensor, std::string name, int paired_head_dim) {
    WeightView view = View(tensor, std::move(name));
    // Rows that are no whole number of heads are left for CheckComplete to refuse.
    const int64_t rows = tensor.shape.empty() ? 0 : tensor.shape[0];
    if (paired_head_dim > 0 && rows % paired_head_dim == 0) view.paired_head_dim = paired_head_dim;
    views_.push_back(std::move(view));
  }

  void PushExperts(const GgufTensor& tensor, const std::string& before, const std::string& after) {
    const int64_t elements = tensor.shape[1] * tensor.shape[2];
    // More experts than the configuration has would be refused anyway; do not list millions.
    if (tensor.shape[0] > kMaxExperts) return Push(tensor, tensor.name, 0);
    for (int64_t e = 0; e < tensor.shape[0]; ++e) {
      WeightView view = View(tensor, absl::StrCat(before, e, after));
      view.info.shape = {tensor.shape[1], tensor.shape[2]};
      view.base = e * elements;
      views_.push_back(std::move(view));
    }
  }

  const ModelConfig& config_;
  const bool mixtral_;
  const bool paired_;
  std::vector<WeightView> views_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<WeightSource>> OpenGguf(const std::string& path,
                                                       PhaseLog* phases) {
  ASSIGN_OR_RETURN(std::shared_ptr<const GgufFile> file, GgufFile::Open(path));
  ASSIGN_OR_RETURN(ModelConfig config,
                   InPhase(phases, "config", [&] { return ConfigFromGguf(*file); }));
  std::vector<WeightView> views = Mapper(*file, config).Take();
  absl::flat_hash_map<std::string, int> seen;
  for (const WeightView& view : views) {
    if (++seen[view.info.name] > 1) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": two tensors both stand for ", view.info.name));
    }
  }
  return std::make_unique<MappedWeights>(std::move(config), file, std::move(views));
}

}  // namespace eventide
