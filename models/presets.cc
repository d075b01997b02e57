#include "models/presets.h"

#include <iterator>

#include "absl/strings/str_join.h"
#include "core/status.h"

namespace eventide {
namespace {

ModelConfig Llama32_1B() {
  return {.family = "llama",
          .hidden = 2048,
          .intermediate = 8192,
          .layers = 16,
          .heads = 32,
          .kv_heads = 8,
          .head_dim = 64,
          .vocab = 128256,
          .max_positions = 131072,
          .rms_eps = 1e-5f,
          .rope = {RopeType::kLlama3, 500000.0, 32.0, 1.0, 4.0, 8192},
          .tie_embeddings = true,
          .dtype = DType::kBF16,
          .bos = 128000,
          .eos = {128001}};
}

ModelConfig Llama31_8B() {
  ModelConfig config = Llama32_1B();
  config.hidden = 4096;
  config.intermediate = 14336;
  config.layers = 32;
  config.head_dim = 128;
  config.rope.factor = 8.0;
  config.tie_embeddings = false;
  return config;
}

ModelConfig Qwen3_8B() {
  return {.family = "qwen3",
          .hidden = 4096,
          .intermediate = 12288,
          .layers = 36,
          .heads = 32,
          .kv_heads = 8,
          .head_dim = 128,
          .vocab = 151936,
          .max_positions = 40960,
          .rms_eps = 1e-6f,
          .rope = {.theta = 1e6},
          .qk_norm = true,
          .dtype = DType::kBF16,
          .bos = 151643,
          .eos = {151645}};
}

ModelConfig Qwen3_06B() {
  ModelConfig config = Qwen3_8B();
  config.hidden = 1024;
  config.intermediate = 3072;
  config.layers = 28;
  config.heads = 16;
  config.tie_embeddings = true;
  return config;
}

ModelConfig Qwen3_30B_A3B() {
  ModelConfig config = Qwen3_8B();
  config.family = "qwen3_moe";
  config.hidden = 2048;
  config.intermediate = 6144;
  config.layers = 48;
  config.kv_heads = 4;
  config.num_experts = 128;
  config.experts_per_token = 8;
  config.moe_intermediate = 768;
  config.norm_topk_prob = true;
  return config;
}

ModelConfig TestLlama() {
  return {.family = "llama",
          .hidden = 192,
          .intermediate = 512,
          .layers = 4,
          .heads = 6,
          .kv_heads = 2,
          .head_dim = 32,
          .vocab = 257,
          .max_positions = 2048,
          .rms_eps = 1e-5f,
          .rope = {.theta = 10000.0},
          .dtype = DType::kBF16,
          .bos = 1,
          .eos = {2}};
}

// Deeper, so that there is something to save; tokens leave where flags let them (ops/exit_tables.h).
ModelConfig TestEarlyExit() {
  ModelConfig config = TestLlama();
  config.layers = 8;
  return config;
}

// Shapes that no tile divides, a group of 7 queries a KV head, and a head size unlike hidden /
// heads.
ModelConfig TestQwen3() {
  return {.family = "qwen3",
          .hidden = 172,
          .intermediate = 300,
          .layers = 3,
          .heads = 7,
          .kv_heads = 1,
          .head_dim = 56,
          .vocab = 257,
          .max_positions = 2048,
          .rms_eps = 1e-6f,
          .rope = {.theta = 1e6},
          .tie_embeddings = true,
          .qk_norm = true,
          .dtype = DType::kBF16,
          .bos = 1,
          .eos = {2}};
}

ModelConfig TestMoe() {
  ModelConfig config = TestLlama();
  config.family = "qwen3_moe";
  config.rms_eps = 1e-6f;
  config.qk_norm = true;
  config.num_experts = 16;
  config.experts_per_token = 4;
  config.moe_intermediate = 96;
  config.norm_topk_prob = true;
  return config;
}

// Families of mixtures of experts in shapes that no tile divides.
ModelConfig TestMixtral() {
  ModelConfig config = TestLlama();
  config.family = "mixtral";
  config.hidden = 175;
  config.heads = 7;
  config.kv_heads = 1;
  config.head_dim = 80;
  config.intermediate = config.moe_intermediate = 75;
  config.num_experts = 5;
  config.experts_per_token = 2;
  config.norm_topk_prob = true;
  return config;
}

ModelConfig TestOlmoe() {
  ModelConfig config = TestLlama();
  config.family = "olmoe";
  config.wide_qk_norm = true;
  config.hidden = 168;
  config.heads = 3;
  config.kv_heads = 1;
  config.head_dim = 56;
  config.intermediate = config.moe_intermediate = 52;
  config.num_experts = 6;
  config.experts_per_token = 2;
  return config;
}

ModelConfig TestQwen2Moe() {
  ModelConfig config = TestLlama();
  config.family = "qwen2_moe";
  config.rms_eps = 1e-6f;
  config.attention_bias = true;
  config.num_experts = 9;
  config.experts_per_token = 3;
  config.moe_intermediate = 40;
  config.shared_intermediate = 101;
  return config;
}

// Test models with query widths unlike the hidden size, which no tile divides.
// Transformers wants a Llama's hidden size to be a multiple of its heads even where the head size
// is another.
struct OddShape {
  const char* name;
  const char* family;
  int heads, kv_heads, head_dim, hidden;
  bool tie_embeddings;
};

constexpr OddShape kOddShapes[] = {
    {"test-llama-7-1", "llama", 7, 1, 80, 175, false},
    {"test-llama-9-3", "llama", 9, 3, 56, 171, true},
    {"test-llama-14-2", "llama", 14, 2, 56, 182, false},
    {"test-qwen3-9-3", "qwen3", 9, 3, 80, 172, false},
    {"test-qwen3-14-2", "qwen3", 14, 2, 80, 172, true},
};

ModelConfig OddConfig(const OddShape& shape) {
  ModelConfig config = TestQwen3();
  config.family = shape.family;
  config.qk_norm = config.family == "qwen3";
  config.heads = shape.heads;
  config.kv_heads = shape.kv_heads;
  config.head_dim = shape.head_dim;
  config.hidden = shape.hidden;
  config.tie_embeddings = shape.tie_embeddings;
  return config;
}

struct Preset {
  const char* name;
  ModelConfig (*make)();
};

constexpr Preset kPresets[] = {
    {"llama-3.2-1b", Llama32_1B},     {"llama-3.1-8b", Llama31_8B},
    {"qwen3-0.6b", Qwen3_06B},        {"qwen3-8b", Qwen3_8B},
    {"qwen3-30b-a3b", Qwen3_30B_A3B}, {"test-llama", TestLlama},
    {"test-qwen3", TestQwen3},        {"test-moe", TestMoe},
    {"test-mixtral", TestMixtral},    {"test-qwen2-moe", TestQwen2Moe},
    {"test-olmoe", TestOlmoe},        {"test-early-exit", TestEarlyExit},
};

}  // namespace

absl::StatusOr<ModelConfig> PresetConfig(absl::string_view name) {
  for (const Preset& preset : kPresets) {
    if (name == preset.name) return preset.make();
  }
  for (const OddShape& shape : kOddShapes) {
    if (name == shape.name) return OddConfig(shape);
  }
  return absl::InvalidArgumentError(absl::StrCat("no preset is called '", name,
                                                 "'; known: ", absl::StrJoin(PresetNames(), ", ")));
}

std::vector<std::string> PresetNames() {
  std::vector<std::string> names;
  for (const Preset& preset : kPresets) names.push_back(preset.name);
  for (const OddShape& shape : kOddShapes) names.push_back(shape.name);
  return names;
}

}  // namespace eventide
