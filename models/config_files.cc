// Configurations from GGUF metadata and from llama2.c headers.
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "core/status.h"
#include "formats/gguf.h"
#include "formats/llama2c.h"
#include "models/config.h"

namespace eventide {
namespace {

constexpr int64_t kMaxInt = std::numeric_limits<int>::max();

struct Architecture {
  const char* gguf;
  const char* family;
  bool qk_norm;
};
constexpr Architecture kArchitectures[] = {
    {"llama", "llama", false},
    {"qwen2", "qwen2", false},
    {"qwen3", "qwen3", true},
    {"qwen3moe", "qwen3_moe", true},
};

// Reads keys "<architecture>.<name>".
class Metadata {
 public:
  Metadata(const GgufFile& file, std::string architecture)
      : file_(file), prefix_(std::move(architecture) + ".") {}

  absl::StatusOr<int> Int(const char* name) const {
    ASSIGN_OR_RETURN(const int64_t value, file_.Integer(prefix_ + name, 0, kMaxInt));
    return int(value);
  }
  absl::StatusOr<int> Int(const char* name, int fallback) const {
    ASSIGN_OR_RETURN(const int64_t value, file_.Integer(prefix_ + name, fallback, 0, kMaxInt));
    return int(value);
  }
  absl::StatusOr<double> Number(const char* name, double fallback) const {
    return file_.Number(prefix_ + name, fallback);
  }
  absl::StatusOr<std::string> Text(const char* name, const char* fallback) const {
    if (file_.Find(prefix_ + name) == nullptr) return std::string(fallback);
    return file_.Text(prefix_ + name);
  }

 private:
  const GgufFile& file_;
  std::string prefix_;
};

// llama3 scaling is not in the metadata: converters write the factor of each frequency as a tensor.
// The parameters are those whose formula gives that tensor; low 1, high 4 and 8,192 positions are
// the only ones published.
absl::StatusOr<RopeConfig> RopeFromFactors(const GgufFile& file, const GgufTensor& tensor,
                                           int head_dim, RopeConfig rope) {
  const int64_t half = head_dim / 2;
  if (tensor.Elements() != half) {
    return absl::InvalidArgumentError(absl::StrCat(file.path(), ": rope_freqs.weight has ",
                                                   tensor.Elements(), " elements, not ", half));
  }
  std::vector<float> factors(static_cast<size_t>(half));
  Dequantize(tensor.type, tensor.data, 0, half, factors.data());
  rope.type = RopeType::kLlama3;
  rope.factor = double(factors.back());
  rope.low_freq_factor = 1.0;
  rope.high_freq_factor = 4.0;
  rope.original_max_positions = 8192;
  for (int64_t i = 0; i < half; ++i) {
    const double wavelength = 2 * M_PI * std::pow(rope.theta, double(2 * i) / head_dim);
    const double turns = rope.original_max_positions / wavelength;
    double expected = 1.0;
    if (turns < rope.low_freq_factor) {
      expected = rope.factor;
    } else if (turns <= rope.high_freq_factor) {
      const double smooth =
          (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
      expected = 1.0 / ((1.0 - smooth) / rope.factor + smooth);
    }
    if (!(std::abs(double(factors[size_t(i)]) - expected) <= 1e-4 * expected)) {
      return absl::UnimplementedError(absl::StrCat(
          file.path(), ": rope_freqs.weight[", i, "] is ", factors[size_t(i)],
          "; Eventide knows only the llama3 scaling of 8192 positions, which has ", expected));
    }
  }
  return rope;
}

absl::StatusOr<RopeConfig> RopeFromGguf(const GgufFile& file, const Metadata& metadata,
                                        int head_dim) {
  RopeConfig rope;
  ASSIGN_OR_RETURN(rope.theta, metadata.Number("rope.freq_base", 10000.0));
  ASSIGN_OR_RETURN(const int rotated, metadata.Int("rope.dimension_count", head_dim));
  if (rotated != head_dim) {
    return absl::UnimplementedError(absl::StrCat(file.path(), ": rope.dimension_count ", rotated,
                                                 " differs from the head size ", head_dim));
  }
  ASSIGN_OR_RETURN(const std::string type, metadata.Text("rope.scaling.type", "none"));
  if (type != "none" && type != "linear") {
    return absl::UnimplementedError(
        absl::StrCat(file.path(), ": rope.scaling.type '", type, "'; supported: none, linear"));
  }
  ASSIGN_OR_RETURN(rope.factor, metadata.Number("rope.scale_linear", 1.0));
  ASSIGN_OR_RETURN(rope.factor, metadata.Number("rope.scaling.factor", rope.factor));
  if (type == "none") rope.factor = 1.0;
  if (type == "linear") rope.type = RopeType::kLinear;
  const GgufTensor* factors = file.FindTensor("rope_freqs.weight");
  if (factors == nullptr) return rope;
  if (rope.type != RopeType::kDefault) {
    return absl::UnimplementedError(absl::StrCat(file.path(), ": rope_freqs.weight and scaling"));
  }
  return RopeFromFactors(file, *factors, head_dim, rope);
}

// float16 or bfloat16 where all matrices are; else float32, which holds every block format's
// values.
DType MatrixType(const GgufFile& file) {
  std::optional<QuantType> type;
  for (const GgufTensor& tensor : file.tensors()) {
    if (tensor.shape.size() < 2) continue;
    if (type && *type != tensor.type) return DType::kF32;
    type = tensor.type;
  }
  if (type == QuantType::kF16) return DType::kF16;
  return type == QuantType::kBF16 ? DType::kBF16 : DType::kF32;
}

absl::Status SizesFromGguf(const GgufFile& file, const Metadata& metadata, ModelConfig* c) {
  const GgufTensor* embedding = file.FindTensor("token_embd.weight");
  if (embedding == nullptr || embedding->shape.size() != 2) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.path(), ": token_embd.weight is missing or no matrix"));
  }
  if (embedding->shape[0] > kMaxVocab) {
    return absl::InvalidArgumentError(absl::StrCat(file.path(), ": token_embd.weight has ",
                                                   embedding->shape[0], " rows; the limit is ",
                                                   kMaxVocab));
  }
  c->vocab = int(embedding->shape[0]);
  ASSIGN_OR_RETURN(c->hidden, metadata.Int("embedding_length"));
  ASSIGN_OR_RETURN(c->intermediate, metadata.Int("feed_forward_length", 0));
  ASSIGN_OR_RETURN(c->layers, metadata.Int("block_count"));
  ASSIGN_OR_RETURN(c->heads, metadata.Int("attention.head_count"));
  ASSIGN_OR_RETURN(c->kv_heads, metadata.Int("attention.head_count_kv", c->heads));
  ASSIGN_OR_RETURN(c->max_positions, metadata.Int("context_length"));
  const int even = c->heads > 0 && c->hidden % c->heads == 0 ? c->hidden / c->heads : 0;
  ASSIGN_OR_RETURN(c->head_dim, metadata.Int("attention.key_length", even));
  ASSIGN_OR_RETURN(const int value_length, metadata.Int("attention.value_length", c->head_dim));
  if (value_length != c->head_dim) {
    return absl::UnimplementedError(absl::StrCat(file.path(), ": key_length ", c->head_dim,
                                                 " and value_length ", value_length, " differ"));
  }
  ASSIGN_OR_RETURN(const int window, metadata.Int("attention.sliding_window", 0));
  if (window > 0) {
    c->sliding_window = window;
    c->windowed_layers.assign(size_t(std::min(c->layers, kMaxLayers)), true);
  }
  return absl::OkStatus();
}

absl::Status MoeFromGguf(const Metadata& metadata, ModelConfig* c) {
  ASSIGN_OR_RETURN(c->num_experts, metadata.Int("expert_count", 0));
  if (c->num_experts == 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(c->experts_per_token, metadata.Int("expert_used_count"));
  ASSIGN_OR_RETURN(c->moe_intermediate,
                   metadata.Int("expert_feed_forward_length", c->intermediate));
  c->norm_topk_prob = true;
  if (c->family == "llama") c->family = "mixtral";
  ASSIGN_OR_RETURN(const int shared, metadata.Int("expert_shared_count", 0));
  if (shared != 0) return absl::UnimplementedError("shared experts (expert_shared_count)");
  return absl::OkStatus();
}

absl::Status TokensFromGguf(const GgufFile& file, ModelConfig* c) {
  ASSIGN_OR_RETURN(const int64_t bos, file.Integer("tokenizer.ggml.bos_token_id", -1, -1, kMaxInt));
  c->bos = int(bos);
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"}) {
    ASSIGN_OR_RETURN(const int64_t eos, file.Integer(key, -1, -1, kMaxInt));
    const bool known = !c->eos.empty() && c->eos[0] == int(eos);
    if (eos >= 0 && !known) c->eos.push_back(int(eos));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelConfig> ConfigFromGguf(const GgufFile& file) {
  ASSIGN_OR_RETURN(const std::string name, file.Text("general.architecture"));
  const Architecture* architecture = nullptr;
  std::string known;
  for (const Architecture& row : kArchitectures) {
    if (name == row.gguf) architecture = &row;
    absl::StrAppend(&known, " ", row.gguf);
  }
  if (architecture == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat(file.path(), ": general.architecture '", name, "'; supported:", known));
  }
  const Metadata metadata(file, name);
  ModelConfig config;
  config.family = architecture->family;
  config.qk_norm = architecture->qk_norm;
  RETURN_IF_ERROR(SizesFromGguf(file, metadata, &config));
  ASSIGN_OR_RETURN(const double eps, metadata.Number("attention.layer_norm_rms_epsilon", 1e-5));
  config.rms_eps = float(eps);
  config.tie_embeddings = file.FindTensor("output.weight") == nullptr;
  config.attention_bias = file.FindTensor("blk.0.attn_q.bias") != nullptr;
  config.attention_output_bias = file.FindTensor("blk.0.attn_output.bias") != nullptr;
  config.mlp_bias = file.FindTensor("blk.0.ffn_gate.bias") != nullptr;
  config.dtype = MatrixType(file);
  RETURN_IF_ERROR(MoeFromGguf(metadata, &config));
  RETURN_IF_ERROR(TokensFromGguf(file, &config));
  if (absl::Status status = ValidateConfig(config); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(file.path(), ": ", status.message()));
  }
  ASSIGN_OR_RETURN(config.rope, RopeFromGguf(file, metadata, config.head_dim));
  if (absl::Status status = ValidateConfig(config); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(file.path(), ": ", status.message()));
  }
  return config;
}

absl::StatusOr<ModelConfig> ConfigFromLlama2c(const Llama2cHeader& header) {
  ModelConfig config;
  config.family = "llama";
  config.hidden = header.dim;
  config.intermediate = header.hidden_dim;
  config.layers = header.layers;
  config.heads = header.heads;
  config.kv_heads = header.kv_heads;
  config.head_dim = header.dim / header.heads;
  config.vocab = header.vocab;
  config.max_positions = header.seq_len;
  // llama2.c has these fixed in its code. Its models end a text with BOS as well as with EOS.
  config.rms_eps = 1e-5f;
  config.rope.theta = 10000.0;
  config.tie_embeddings = header.shared_classifier;
  config.dtype = DType::kF32;
  if (config.vocab > 2) {
    config.bos = 1;
    config.eos = {1, 2};
  }
  RETURN_IF_ERROR(ValidateConfig(config));
  return config;
}

}  // namespace eventide
