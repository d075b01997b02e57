// config.json of Hugging Face folders, read and written.
#include <algorithm>
#include <charconv>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "core/status.h"
#include "formats/json.h"
#include "models/config.h"

namespace eventide {
namespace {

using nlohmann::json;

constexpr int64_t kMaxInt = std::numeric_limits<int>::max();

// What a family's configuration class fills in where config.json says nothing, and what it implies.
struct Family {
  const char* model_type;
  const char* architecture;
  int kv_heads;  // 0: as many as heads
  int head_dim;  // 0: hidden / heads
  int max_positions;
  double rms_eps;
  double theta;
  int sliding_window;  // 0: none
  int bos;
  int eos;
  bool qk_norm;
  bool qkv_bias;  // always has q, k, v biases and never an o bias
  bool wide_qk_norm = false;
};

constexpr Family kFamilies[] = {
    {"llama", "LlamaForCausalLM", 0, 0, 2048, 1e-6, 1e4, 0, 1, 2, false, false},
    {"mistral", "MistralForCausalLM", 8, 0, 131072, 1e-6, 1e4, 4096, 1, 2, false, false},
    {"qwen2", "Qwen2ForCausalLM", 0, 0, 32768, 1e-6, 1e4, 0, -1, -1, false, true},
    {"qwen3", "Qwen3ForCausalLM", 0, 128, 32768, 1e-6, 1e4, 0, -1, -1, true, false},
    {"qwen3_moe", "Qwen3MoeForCausalLM", 4, 0, 32768, 1e-6, 1e4, 0, -1, -1, true, false},
    {"qwen2_moe", "Qwen2MoeForCausalLM", 16, 0, 32768, 1e-6, 1e4, 0, -1, -1, false, true},
    {"olmoe", "OlmoeForCausalLM", 0, 0, 4096, 1e-5, 1e4, 0, -1, 50279, false, false, true},
    {"mixtral", "MixtralForCausalLM", 8, 0, 131072, 1e-5, 1e6, 0, 1, 2, false, false},
};

absl::StatusOr<Family> FindFamily(const json& root) {
  ASSIGN_OR_RETURN(const std::string type, JsonString(root, "model_type", ""));
  std::string known;
  for (const Family& family : kFamilies) {
    if (type == family.model_type) return family;
    absl::StrAppend(&known, " ", family.model_type);
  }
  return absl::UnimplementedError(
      absl::StrCat(type.empty() ? "model_type is missing" : absl::StrCat("model_type '", type, "'"),
                   "; supported:", known));
}

absl::StatusOr<int> Int(const json& root, const char* key) {
  ASSIGN_OR_RETURN(const int64_t value, JsonInteger(root, key, 0, kMaxInt));
  return int(value);
}

absl::StatusOr<int> Int(const json& root, const char* key, int64_t fallback) {
  ASSIGN_OR_RETURN(const int64_t value, JsonInteger(root, key, fallback, 0, kMaxInt));
  return int(value);
}

// Whatever would change what the model computes in a way that Eventide does not do.
absl::Status RefuseUnknown(const json& root) {
  ASSIGN_OR_RETURN(const std::string activation, JsonString(root, "hidden_act", "silu"));
  if (activation != "silu" && activation != "swish") {
    return absl::UnimplementedError(absl::StrCat("hidden_act '", activation, "'; supported: silu"));
  }
  for (const char* key : {"quantization_config", "compression_config"}) {
    if (const json* value = JsonFind(root, key); value != nullptr) {
      return absl::UnimplementedError(absl::StrCat(key, " ", JsonExcerpt(*value),
                                                   ": quantised checkpoints are not supported in "
                                                   "this form; use the original or a GGUF file"));
    }
  }
  if (const json* value = JsonFind(root, "clip_qkv"); value != nullptr) {
    return absl::UnimplementedError(absl::StrCat("clip_qkv ", JsonExcerpt(*value)));
  }
  ASSIGN_OR_RETURN(const double partial, JsonNumber(root, "partial_rotary_factor", 1.0));
  if (partial != 1.0) {
    return absl::UnimplementedError(absl::StrCat("partial_rotary_factor ", partial));
  }
  ASSIGN_OR_RETURN(const double parallel, JsonNumber(root, "pretraining_tp", 1.0));
  if (parallel != 1.0) {
    return absl::UnimplementedError(absl::StrCat("pretraining_tp ", parallel));
  }
  return absl::OkStatus();
}

absl::StatusOr<RopeConfig> ParseRope(const json& root, const Family& family) {
  RopeConfig rope;
  ASSIGN_OR_RETURN(rope.theta, JsonNumber(root, "rope_theta", family.theta));
  const json* scaling = JsonFind(root, "rope_parameters");
  if (scaling == nullptr) scaling = JsonFind(root, "rope_scaling");
  if (scaling == nullptr) return rope;
  if (!scaling->is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat("rope_parameters / rope_scaling is ", JsonExcerpt(*scaling)));
  }
  for (const json& value : *scaling) {
    if (value.is_object()) {
      return absl::UnimplementedError("rope parameters that differ by layer type");
    }
  }
  ASSIGN_OR_RETURN(rope.theta, JsonNumber(*scaling, "rope_theta", rope.theta));
  ASSIGN_OR_RETURN(const double partial, JsonNumber(*scaling, "partial_rotary_factor", 1.0));
  if (partial != 1.0) {
    return absl::UnimplementedError(absl::StrCat("partial_rotary_factor ", partial));
  }
  ASSIGN_OR_RETURN(std::string type, JsonString(*scaling, "type", "default"));
  ASSIGN_OR_RETURN(type, JsonString(*scaling, "rope_type", type));
  if (type == "default") return rope;
  if (type != "linear" && type != "llama3") {
    return absl::UnimplementedError(
        absl::StrCat("rope type '", type, "'; supported: default, linear, llama3"));
  }
  rope.type = type == "linear" ? RopeType::kLinear : RopeType::kLlama3;
  if (JsonFind(*scaling, "factor") == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("rope type ", type, " without a factor"));
  }
  ASSIGN_OR_RETURN(rope.factor, JsonNumber(*scaling, "factor", 1.0));
  if (rope.type == RopeType::kLinear) return rope;
  for (const char* key : {"low_freq_factor", "high_freq_factor"}) {
    if (JsonFind(*scaling, key) == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("rope type llama3 without ", key));
    }
  }
  ASSIGN_OR_RETURN(rope.low_freq_factor, JsonNumber(*scaling, "low_freq_factor", 1.0));
  ASSIGN_OR_RETURN(rope.high_freq_factor, JsonNumber(*scaling, "high_freq_factor", 4.0));
  ASSIGN_OR_RETURN(rope.original_max_positions, Int(*scaling, "original_max_position_embeddings"));
  return rope;
}

// Mistral and Mixtral window every layer; Qwen only where use_sliding_window says so, from layer
// max_window_layers on. layer_types, where given, says it layer by layer.
absl::Status ParseWindows(const json& root, const Family& family, ModelConfig* config) {
  const bool qwen = absl::StartsWith(family.model_type, "qwen");
  ASSIGN_OR_RETURN(const bool use, JsonBool(root, "use_sliding_window", !qwen));
  // An explicit null turns a family's default window off.
  const int fallback = root.contains("sliding_window") ? 0 : family.sliding_window;
  ASSIGN_OR_RETURN(int window, Int(root, "sliding_window", fallback));
  if (!use) window = 0;
  ASSIGN_OR_RETURN(const int first, Int(root, "max_window_layers", qwen ? 28 : 0));
  const int layers = std::min(config->layers, kMaxLayers);
  std::vector<bool> windowed(size_t(layers), false);
  for (int i = qwen ? first : 0; i < layers; ++i) windowed[size_t(i)] = true;
  if (const json* types = JsonFind(root, "layer_types"); types != nullptr) {
    if (!types->is_array() || types->size() != size_t(config->layers)) {
      return absl::InvalidArgumentError("layer_types is not a list with an entry for each layer");
    }
    for (size_t i = 0; i < windowed.size(); ++i) {
      const json& type = (*types)[i];
      if (type != "full_attention" && type != "sliding_attention") {
        return absl::UnimplementedError(absl::StrCat(
            "layer type ", JsonExcerpt(type), "; supported: full_attention, sliding_attention"));
      }
      windowed[i] = type == "sliding_attention";
      if (windowed[i] && window == 0) {
        return absl::InvalidArgumentError(
            "layer_types has sliding_attention, but there is no sliding_window in use");
      }
    }
  }
  if (window > 0 && std::find(windowed.begin(), windowed.end(), true) != windowed.end()) {
    config->sliding_window = window;
    config->windowed_layers = std::move(windowed);
  }
  return absl::OkStatus();
}

absl::Status ParseMoe(const json& root, ModelConfig* config) {
  if (config->family == "mixtral") {
    ASSIGN_OR_RETURN(config->num_experts, Int(root, "num_local_experts", 8));
    ASSIGN_OR_RETURN(config->experts_per_token, Int(root, "num_experts_per_tok", 2));
    config->moe_intermediate = config->intermediate;
    config->norm_topk_prob = true;
  } else if (config->family == "olmoe") {
    ASSIGN_OR_RETURN(config->num_experts, Int(root, "num_experts", 64));
    ASSIGN_OR_RETURN(config->experts_per_token, Int(root, "num_experts_per_tok", 8));
    config->moe_intermediate = config->intermediate;
    ASSIGN_OR_RETURN(config->norm_topk_prob, JsonBool(root, "norm_topk_prob", false));
  } else if (config->family == "qwen3_moe" || config->family == "qwen2_moe") {
    const bool shared = config->family == "qwen2_moe";
    const char* key = JsonFind(root, "num_experts") ? "num_experts" : "num_local_experts";
    ASSIGN_OR_RETURN(config->num_experts, Int(root, key, shared ? 60 : 128));
    ASSIGN_OR_RETURN(config->experts_per_token, Int(root, "num_experts_per_tok", shared ? 4 : 8));
    ASSIGN_OR_RETURN(config->moe_intermediate,
                     Int(root, "moe_intermediate_size", shared ? 1408 : 768));
    if (shared) {
      ASSIGN_OR_RETURN(config->shared_intermediate,
                       Int(root, "shared_expert_intermediate_size", 5632));
    }
    ASSIGN_OR_RETURN(config->norm_topk_prob, JsonBool(root, "norm_topk_prob", false));
    ASSIGN_OR_RETURN(const int step, Int(root, "decoder_sparse_step", 1));
    const json* dense = JsonFind(root, "mlp_only_layers");
    if (step != 1 || (dense != nullptr && !dense->empty())) {
      return absl::UnimplementedError(
          "a mixture of experts with dense layers in between (decoder_sparse_step, "
          "mlp_only_layers)");
    }
  }
  for (const char* key : {"shared_expert_intermediate_size", "n_shared_experts"}) {
    ASSIGN_OR_RETURN(const int shared, Int(root, key, 0));
    if (shared != 0 && config->shared_intermediate == 0) return absl::UnimplementedError(absl::StrCat("shared experts (", key, ")"));
  }
  return absl::OkStatus();
}

absl::Status ParseTokens(const json& root, const Family& family, ModelConfig* config) {
  // null means none; absent means the family's default, where it lies in the vocabulary.
  auto fallback = [&](const char* key, int value) {
    return root.contains(key) || value >= config->vocab ? -1 : value;
  };
  const json* eos = JsonFind(root, "eos_token_id");
  ASSIGN_OR_RETURN(
      const int64_t bos,
      JsonInteger(root, "bos_token_id", fallback("bos_token_id", family.bos), -1, kMaxInt));
  config->bos = int(bos);
  if (eos != nullptr && eos->is_array()) {
    for (const json& id : *eos) {
      const json one = {{"eos_token_id", id}};
      ASSIGN_OR_RETURN(const int value, Int(one, "eos_token_id"));
      config->eos.push_back(value);
    }
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(
      const int64_t one,
      JsonInteger(root, "eos_token_id", fallback("eos_token_id", family.eos), -1, kMaxInt));
  if (one >= 0) config->eos.push_back(int(one));
  return absl::OkStatus();
}

absl::Status ParseSizes(const json& root, const Family& family, ModelConfig* config) {
  ASSIGN_OR_RETURN(config->hidden, Int(root, "hidden_size"));
  ASSIGN_OR_RETURN(config->layers, Int(root, "num_hidden_layers"));
  ASSIGN_OR_RETURN(config->heads, Int(root, "num_attention_heads"));
  ASSIGN_OR_RETURN(config->vocab, Int(root, "vocab_size"));
  ASSIGN_OR_RETURN(config->intermediate, Int(root, "intermediate_size"));
  ASSIGN_OR_RETURN(config->kv_heads, Int(root, "num_key_value_heads",
                                         family.kv_heads ? family.kv_heads : config->heads));
  const bool head_dim_given = JsonFind(root, "head_dim") != nullptr;
  if (!head_dim_given && family.head_dim == 0) {
    if (config->heads < 1 || config->hidden % config->heads != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("num_attention_heads ", config->heads, " does not divide hidden_size ",
                       config->hidden, ", and head_dim is not given"));
    }
    config->head_dim = config->hidden / config->heads;
  } else {
    ASSIGN_OR_RETURN(config->head_dim, Int(root, "head_dim", family.head_dim));
  }
  ASSIGN_OR_RETURN(config->max_positions,
                   Int(root, "max_position_embeddings", family.max_positions));
  return absl::OkStatus();
}

absl::Status ParseDType(const json& root, ModelConfig* config, bool* stated) {
  const char* key = JsonFind(root, "dtype") ? "dtype" : "torch_dtype";
  ASSIGN_OR_RETURN(const std::string name, JsonString(root, key, ""));
  if (stated != nullptr) *stated = !name.empty() && name != "auto";
  if (name.empty() || name == "auto") return absl::OkStatus();
  const std::optional<DType> type = DTypeFromName(name);
  if (!type || !IsWeightDType(*type)) {
    return absl::UnimplementedError(
        absl::StrCat(key, " '", name, "'; supported: float32, float16, bfloat16"));
  }
  config->dtype = *type;
  return absl::OkStatus();
}

absl::StatusOr<ModelConfig> ParseRoot(const json& root, bool* dtype_stated) {
  ASSIGN_OR_RETURN(const Family family, FindFamily(root));
  RETURN_IF_ERROR(RefuseUnknown(root));
  ModelConfig config;
  config.family = family.model_type;
  RETURN_IF_ERROR(ParseSizes(root, family, &config));
  ASSIGN_OR_RETURN(const double eps, JsonNumber(root, "rms_norm_eps", family.rms_eps));
  config.rms_eps = float(eps);
  ASSIGN_OR_RETURN(config.rope, ParseRope(root, family));
  ASSIGN_OR_RETURN(config.tie_embeddings, JsonBool(root, "tie_word_embeddings", false));
  config.qk_norm = family.qk_norm;
  config.wide_qk_norm = family.wide_qk_norm;
  config.attention_bias = family.qkv_bias;
  if (!family.qkv_bias) {
    ASSIGN_OR_RETURN(config.attention_bias, JsonBool(root, "attention_bias", false));
    config.attention_output_bias = config.attention_bias;
  }
  ASSIGN_OR_RETURN(config.mlp_bias, JsonBool(root, "mlp_bias", false));
  RETURN_IF_ERROR(ParseWindows(root, family, &config));
  RETURN_IF_ERROR(ParseMoe(root, &config));
  RETURN_IF_ERROR(ParseTokens(root, family, &config));
  RETURN_IF_ERROR(ParseDType(root, &config, dtype_stated));
  RETURN_IF_ERROR(ValidateConfig(config));
  return config;
}

// The double nearest to the shortest decimal that reads back as this float: 1e-05 where a plain
// conversion would print 9.999999747378752e-06.
double ShortestDecimal(float value) {
  char text[32];
  const std::to_chars_result end = std::to_chars(text, text + sizeof(text), value);
  double result = 0;
  std::from_chars(text, end.ptr, result);
  return result;
}

json RopeJson(const RopeConfig& rope) {
  if (rope.type == RopeType::kDefault) return nullptr;
  if (rope.type == RopeType::kLinear) return {{"rope_type", "linear"}, {"factor", rope.factor}};
  return {{"rope_type", "llama3"},
          {"factor", rope.factor},
          {"low_freq_factor", rope.low_freq_factor},
          {"high_freq_factor", rope.high_freq_factor},
          {"original_max_position_embeddings", rope.original_max_positions}};
}

}  // namespace

absl::StatusOr<ModelConfig> ParseHfConfig(absl::string_view text, bool* dtype_stated) {
  ASSIGN_OR_RETURN(const json root, ParseJsonObject(text, "config.json"));
  absl::StatusOr<ModelConfig> config = ParseRoot(root, dtype_stated);
  if (!config.ok()) {
    return absl::Status(config.status().code(),
                        absl::StrCat("config.json: ", config.status().message()));
  }
  return config;
}

std::string HfConfigJson(const ModelConfig& config, DType dtype) {
  const Family* family = nullptr;
  for (const Family& row : kFamilies) {
    if (config.family == row.model_type) family = &row;
  }
  EVT_CHECK(family != nullptr);
  nlohmann::ordered_json root = {
      {"architectures", {family->architecture}},
      {"model_type", config.family},
      {"hidden_size", config.hidden},
      {"intermediate_size", config.intermediate},
      {"num_hidden_layers", config.layers},
      {"num_attention_heads", config.heads},
      {"num_key_value_heads", config.kv_heads},
      {"head_dim", config.head_dim},
      {"vocab_size", config.vocab},
      {"max_position_embeddings", config.max_positions},
      {"hidden_act", "silu"},
      {"rope_theta", config.rope.theta},
      {"rope_scaling", RopeJson(config.rope)},
      {"tie_word_embeddings", config.tie_embeddings},
      {"attention_bias", config.attention_bias},
      {"mlp_bias", config.mlp_bias},
      {"torch_dtype", DTypeName(dtype)},
  };
  root["rms_norm_eps"] = ShortestDecimal(config.rms_eps);
  root["bos_token_id"] = config.bos >= 0 ? json(config.bos) : json(nullptr);
  root["eos_token_id"] = config.eos.empty()       ? json(nullptr)
                         : config.eos.size() == 1 ? json(config.eos[0])
                                                  : json(config.eos);
  root["sliding_window"] = config.sliding_window > 0 ? json(config.sliding_window) : json(nullptr);
  root["use_sliding_window"] = config.sliding_window > 0;
  if (config.sliding_window > 0) {
    json types = json::array();
    for (bool windowed : config.windowed_layers) {
      types.push_back(windowed ? "sliding_attention" : "full_attention");
    }
    root["layer_types"] = std::move(types);
  }
  if (config.IsMoe()) {
    root[config.family == "mixtral" ? "num_local_experts" : "num_experts"] = config.num_experts;
    root["num_experts_per_tok"] = config.experts_per_token;
    root["moe_intermediate_size"] = config.moe_intermediate;
    root["norm_topk_prob"] = config.norm_topk_prob;
    if (config.shared_intermediate > 0) {
      root["shared_expert_intermediate_size"] = config.shared_intermediate;
    }
    root["decoder_sparse_step"] = 1;
    root["mlp_only_layers"] = json::array();
  }
  return root.dump(2) + "\n";
}

}  // namespace eventide
