// What a model is, read from config.json, GGUF metadata or a llama2.c header: one struct that the
// graph builders, the weight checks and the rope tables all read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/dtype.h"
#include "device/kv_view.h"  // kMaxHeadDim: what attention computes with

namespace eventide {

class GgufFile;
struct Llama2cHeader;

enum class RopeType { kDefault, kLinear, kLlama3 };

struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  double factor = 1.0;             // linear, llama3
  double low_freq_factor = 1.0;    // llama3
  double high_freq_factor = 4.0;   // llama3
  int original_max_positions = 0;  // llama3

  bool operator==(const RopeConfig&) const = default;
};

// Limits on what a configuration may say, so that no later product of two of its numbers overflows.
inline constexpr int kMaxHidden = 1 << 17;
inline constexpr int kMaxLayers = 1024;
inline constexpr int kMaxHeads = 1024;
inline constexpr int kMaxVocab = 1 << 22;
inline constexpr int kMaxPositions = 1 << 24;
inline constexpr int kMaxExperts = 1024;

struct ModelConfig {
  // Hugging Face's model_type (the rows of config_hf.cc). It decides
  // tensor names and the exported config.json; what is computed follows from the fields below
  // alone.
  std::string family;
  int hidden = 0;
  int intermediate = 0;  // of the dense MLP
  int layers = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int vocab = 0;
  int max_positions = 0;
  float rms_eps = 1e-6f;
  RopeConfig rope;
  bool tie_embeddings = false;
  bool qk_norm = false;                // RMS norm of each head of q and k before rope
  bool wide_qk_norm = false;           // RMS norm over all heads of q, and of k, together
  bool attention_bias = false;         // of the q, k and v projections
  bool attention_output_bias = false;  // of the o projection
  bool mlp_bias = false;
  int sliding_window = 0;  // tokens a windowed layer sees, itself included; 0: no layer is windowed
  std::vector<bool> windowed_layers = {};  // one per layer if sliding_window > 0, else empty
  // What the checkpoint stores its matrices in; kF32 for quantised files, whose values need it.
  DType dtype = DType::kF32;
  int bos = -1;               // -1: none
  std::vector<int> eos = {};  // each ends a sequence

  // Mixture of experts; all 0 for dense models.
  int num_experts = 0;
  int experts_per_token = 0;
  int moe_intermediate = 0;
  int shared_intermediate = 0;  // of the expert that every token passes, times the sigmoid of its gate
  bool norm_topk_prob = false;

  bool operator==(const ModelConfig&) const = default;

  bool IsMoe() const { return num_experts > 0; }
  int QueryWidth() const { return heads * head_dim; }
  int KeyValueWidth() const { return kv_heads * head_dim; }
  // The window of one layer in tokens; 0: the layer sees everything.
  int Window(int layer) const {
    return sliding_window > 0 && windowed_layers[size_t(layer)] ? sliding_window : 0;
  }
};

// Refuses, naming the field, what Eventide cannot run or what would overflow.
absl::Status ValidateConfig(const ModelConfig& config);

// From the text of a config.json. Whatever it says that Eventide does not do (an activation, a rope
// type, a quantisation) is an error that names it. Sets `*dtype_stated` to whether a dtype was
// given.
absl::StatusOr<ModelConfig> ParseHfConfig(absl::string_view json, bool* dtype_stated = nullptr);

// The text of a config.json that ParseHfConfig reads back as an equal ModelConfig, with `dtype`.
std::string HfConfigJson(const ModelConfig& config, DType dtype);

absl::StatusOr<ModelConfig> ConfigFromGguf(const GgufFile& file);
absl::StatusOr<ModelConfig> ConfigFromLlama2c(const Llama2cHeader& header);

}  // namespace eventide
