#include "models/config.h"

#include "models/presets.h"
#include "tests/support/test.h"

using namespace eventide;

namespace {

// The least a config.json may say, plus `more` (starting with a comma).
std::string Json(const std::string& more, const std::string& type = "llama") {
  return R"({"model_type":")" + type +
         R"(","hidden_size":64,"intermediate_size":172,"num_hidden_layers":5,)"
         R"("num_attention_heads":8,"vocab_size":512)" +
         more + "}";
}

ModelConfig Parse(const std::string& json) {
  const auto config = ParseHfConfig(json);
  INFO(config.status().message());
  REQUIRE(config.ok());
  return *config;
}

void CheckRefused(const std::string& json, const std::string& reason) {
  const auto config = ParseHfConfig(json);
  INFO(json);
  REQUIRE(!config.ok());
  INFO(config.status().message());
  CHECK(std::string(config.status().message()).find(reason) != std::string::npos);
}

}  // namespace

TEST_CASE("What config.json leaves out follows from the family") {
  const ModelConfig llama = Parse(Json(""));
  CHECK(llama.kv_heads == 8);
  CHECK(llama.head_dim == 8);
  CHECK(llama.max_positions == 2048);
  CHECK(llama.rms_eps == 1e-6f);
  CHECK(llama.rope == RopeConfig{});
  CHECK(!llama.tie_embeddings);
  CHECK(llama.bos == 1);
  CHECK(llama.eos == std::vector<int>{2});
  CHECK(!llama.attention_bias);

  const ModelConfig qwen2 = Parse(Json("", "qwen2"));
  CHECK(qwen2.attention_bias);
  CHECK(!qwen2.attention_output_bias);
  const ModelConfig qwen3 = Parse(Json("", "qwen3"));
  CHECK(qwen3.head_dim == 128);
  CHECK(qwen3.qk_norm);
  CHECK(qwen3.bos == -1);
  const ModelConfig mixtral = Parse(Json("", "mixtral"));
  CHECK(mixtral.num_experts == 8);
  CHECK(mixtral.moe_intermediate == 172);
  CHECK(mixtral.norm_topk_prob);
  const ModelConfig shared = Parse(Json(R"(,"num_key_value_heads":4)", "qwen2_moe"));
  CHECK(shared.num_experts == 60);
  CHECK(shared.shared_intermediate == 5632);
  CHECK(!shared.norm_topk_prob);
  const ModelConfig olmoe = Parse(Json("", "olmoe"));
  CHECK(olmoe.wide_qk_norm);
  CHECK(!olmoe.qk_norm);
  CHECK(olmoe.moe_intermediate == 172);
  CheckRefused(Json(R"(,"clip_qkv":8.0)", "olmoe"), "clip_qkv");
}

TEST_CASE("The published configurations of known models parse to the presets") {
  const std::string llama =
      R"({"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_act":"silu",)"
      R"("bos_token_id":128000,"eos_token_id":128001,"max_position_embeddings":131072,)"
      R"("num_key_value_heads":8,"num_attention_heads":32,"rms_norm_eps":1e-05,)"
      R"("rope_theta":500000.0,"torch_dtype":"bfloat16","vocab_size":128256,"pretraining_tp":1,)";
  const std::string scaling =
      R"("high_freq_factor":4.0,"low_freq_factor":1.0,"original_max_position_embeddings":8192,)"
      R"("rope_type":"llama3"}})";
  CHECK(Parse(llama +
              R"("hidden_size":2048,"intermediate_size":8192,"num_hidden_layers":16,)"
              R"("head_dim":64,"tie_word_embeddings":true,"rope_scaling":{"factor":32.0,)" +
              scaling) == *PresetConfig("llama-3.2-1b"));
  CHECK(Parse(llama +
              R"("hidden_size":4096,"intermediate_size":14336,"num_hidden_layers":32,)"
              R"("tie_word_embeddings":false,"rope_scaling":{"factor":8.0,)" +
              scaling) == *PresetConfig("llama-3.1-8b"));
  const std::string qwen =
      R"("bos_token_id":151643,"eos_token_id":151645,"head_dim":128,"hidden_act":"silu",)"
      R"("max_position_embeddings":40960,"rms_norm_eps":1e-06,"rope_scaling":null,)"
      R"("rope_theta":1000000,"sliding_window":null,"use_sliding_window":false,)"
      R"("max_window_layers":28,"torch_dtype":"bfloat16","vocab_size":151936})";
  CHECK(Parse(R"({"model_type":"qwen3","hidden_size":1024,"intermediate_size":3072,)"
              R"("num_hidden_layers":28,"num_attention_heads":16,"num_key_value_heads":8,)"
              R"("tie_word_embeddings":true,)" +
              qwen) == *PresetConfig("qwen3-0.6b"));
  CHECK(Parse(R"({"model_type":"qwen3","hidden_size":4096,"intermediate_size":12288,)"
              R"("num_hidden_layers":36,"num_attention_heads":32,"num_key_value_heads":8,)"
              R"("tie_word_embeddings":false,)" +
              qwen) == *PresetConfig("qwen3-8b"));
  CHECK(Parse(R"({"model_type":"qwen3_moe","hidden_size":2048,"intermediate_size":6144,)"
              R"("num_hidden_layers":48,"num_attention_heads":32,"num_key_value_heads":4,)"
              R"("tie_word_embeddings":false,"num_experts":128,"num_experts_per_tok":8,)"
              R"("moe_intermediate_size":768,"norm_topk_prob":true,"decoder_sparse_step":1,)"
              R"("mlp_only_layers":[],)" +
              qwen) == *PresetConfig("qwen3-30b-a3b"));
}

TEST_CASE("Every preset is valid and survives being written as config.json") {
  for (const std::string& name : PresetNames()) {
    INFO(name);
    const ModelConfig config = *PresetConfig(name);
    CHECK(ValidateConfig(config).ok());
    CHECK(Parse(HfConfigJson(config, config.dtype)) == config);
  }
  CHECK(!PresetConfig("llama").ok());
}

TEST_CASE("Windows, odd epsilons and several end tokens survive being written as config.json") {
  ModelConfig config = Parse(Json(
      R"(,"sliding_window":16,"use_sliding_window":true,"max_window_layers":3,"rms_norm_eps":1.2345e-5)",
      "qwen2"));
  CHECK(config.Window(2) == 0);
  CHECK(config.Window(3) == 16);
  config.eos = {3, 7};
  CHECK(Parse(HfConfigJson(config, config.dtype)) == config);
  const ModelConfig mistral = Parse(Json(R"(,"num_key_value_heads":4)", "mistral"));
  CHECK(mistral.Window(0) == 4096);
  CHECK(Parse(HfConfigJson(mistral, mistral.dtype)) == mistral);
  CHECK(Parse(Json(R"(,"sliding_window":null)", "mistral")).Window(0) == 0);
}

TEST_CASE("Both spellings of rope settings mean the same") {
  const ModelConfig older =
      Parse(Json(R"(,"rope_theta":5e5,"rope_scaling":{"type":"linear","factor":2})"));
  const ModelConfig newer =
      Parse(Json(R"(,"rope_parameters":{"rope_type":"linear","rope_theta":5e5,"factor":2})"));
  CHECK(older.rope.type == RopeType::kLinear);
  CHECK(older == newer);
}

TEST_CASE("What would compute something else is refused by name") {
  CheckRefused(Json(R"(,"hidden_act":"gelu")"), "gelu");
  CheckRefused(Json(R"(,"rope_scaling":{"rope_type":"yarn","factor":4.0})"), "yarn");
  CheckRefused(Json(R"(,"rope_scaling":{"rope_type":"llama3"})"), "without a factor");
  CheckRefused(Json(R"(,"rope_scaling":{"rope_type":"llama3","factor":8})"), "low_freq_factor");
  CheckRefused(Json(R"(,"rope_parameters":{"full_attention":{"rope_type":"default"}})"),
               "differ by layer type");
  CheckRefused(Json(R"(,"quantization_config":{"quant_method":"awq"})"), "awq");
  CheckRefused(Json(R"(,"partial_rotary_factor":0.5)"), "partial_rotary_factor");
  CheckRefused(Json(R"(,"torch_dtype":"float8_e4m3fn")"), "float8_e4m3fn");
  CheckRefused(Json("", "gemma2"), "gemma2");
  CheckRefused("{}", "model_type is missing");
  CheckRefused(Json(R"(,"layer_types":["full_attention","x","x","x","x"])", "qwen3"), "\"x\"");
  CheckRefused(Json(R"(,"mlp_only_layers":[1])", "qwen3_moe"), "mlp_only_layers");
  CheckRefused(Json(R"(,"num_key_value_heads":3)"), "does not divide");
  CheckRefused(Json(R"(,"head_dim":12)"), "multiples of 8");
  CheckRefused(Json(R"(,"head_dim":264)"), "8 to 256");
  CheckRefused(Json(R"(,"max_position_embeddings":-1)"), "max_position_embeddings");
  CheckRefused(Json(R"(,"max_position_embeddings":1e3)"), "integer");
  CheckRefused(Json(R"(,"rms_norm_eps":"small")"), "rms_norm_eps");
  CheckRefused(Json(R"(,"eos_token_id":[1,512])"), "eos_token_id");
  CheckRefused(Json(R"(,"tie_word_embeddings":1)"), "true or false");
  CheckRefused(Json(R"(,"vocab_size":512)"), "appears twice");
  CheckRefused("[]", "not a JSON object");
  CheckRefused("{", "not valid JSON");
  CheckRefused(R"({"model_type":"llama"})", "hidden_size is missing");
}
