// Gains and weights as float16 takes them: the same products, and no gain above 1.
#include "models/float16_gains.h"

#include <cmath>

#include "core/dtype.h"
#include "tests/support/loud_model.h"
#include "tests/support/test.h"

namespace eventide {
namespace {

std::vector<float> ReadHalves(const WeightSource& source, const std::string& name) {
  const size_t count = static_cast<size_t>(source.Info(name)->Elements());
  std::vector<uint16_t> halves(count);
  REQUIRE(source.Read(name, 0, static_cast<int64_t>(count), DType::kF16, halves.data()).ok());
  std::vector<float> values;
  for (const uint16_t half : halves) values.push_back(F16ToF32(half));
  return values;
}

TEST_CASE("gains above 1 are divided by a power of two that the linears behind them take on") {
  const LoudModel loud;
  const auto scaled = WithFloat16Gains(loud);
  REQUIRE(scaled.ok());
  for (const std::string norm : {"input_layernorm", "post_attention_layernorm"}) {
    const std::string layer = "model.layers.1.", gain = layer + norm + ".weight";
    const std::vector<float> before = ReadHalves(loud, gain), after = ReadHalves(**scaled, gain);
    for (size_t i = 0; i < before.size(); ++i) {
      REQUIRE(std::fabs(after[i]) <= 1);
      REQUIRE(after[i] * 32 == before[i]);  // the loud column has 24
    }
    const bool attention = norm == "input_layernorm";
    for (const std::string linear :
         attention
             ? std::vector<std::string>{"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}
             : std::vector<std::string>{"mlp.gate_proj", "mlp.up_proj"}) {
      const std::string name = layer + linear + ".weight";
      const std::vector<float> plain = ReadHalves(loud, name), more = ReadHalves(**scaled, name);
      for (size_t i = 0; i < plain.size(); ++i) REQUIRE(more[i] == plain[i] * 32);
      CHECK_FALSE((*scaled)->Drawn(name).has_value());
    }
  }
  for (const char* name :
       {"model.norm.weight", "model.embed_tokens.weight", "model.layers.1.self_attn.o_proj.weight",
        "model.layers.1.mlp.down_proj.weight"}) {
    INFO(name);
    CHECK(ReadHalves(**scaled, name) == ReadHalves(loud, name));
  }
}

TEST_CASE("all experts, their router and the shared one take on the gains in front of them") {
  const LoudModel loud(0, "test-qwen2-moe");
  const auto scaled = WithFloat16Gains(loud);
  REQUIRE(scaled.ok());
  const std::string mlp = "model.layers.1.mlp.";
  int taken = 0;
  for (const TensorInfo& info : loud.Tensors()) {
    if (info.name.rfind(mlp, 0) != 0) continue;
    INFO(info.name);
    const std::vector<float> plain = ReadHalves(loud, info.name);
    const std::vector<float> more = ReadHalves(**scaled, info.name);
    // What leads back to the residual stays.
    const float factor = info.name.find("down_proj") == std::string::npos ? 32 : 1;
    for (size_t i = 0; i < plain.size(); ++i) REQUIRE(more[i] == plain[i] * factor);
    taken += factor == 32;
  }
  CHECK(taken == 1 + 9 * 2 + 2 + 1);
}

TEST_CASE("gains that a device draws stay, and so does what is behind them") {
  const auto source = RandomWeights(*PresetConfig("test-llama"), 3);
  const auto scaled = WithFloat16Gains(*source);
  REQUIRE(scaled.ok());
  for (const TensorInfo& info : source->Tensors()) {
    CHECK((*scaled)->Drawn(info.name).has_value());
    REQUIRE(ReadHalves(**scaled, info.name) == ReadHalves(*source, info.name));
  }
}

TEST_CASE("weights that float16 does not hold with their gains are refused by name") {
  const LoudModel loud(/*weight=*/4000);
  const auto scaled = WithFloat16Gains(loud);
  REQUIRE(scaled.ok());
  const std::string name = "model.layers.0.mlp.up_proj.weight";
  std::vector<uint16_t> halves(static_cast<size_t>(loud.Info(name)->Elements()));
  const absl::Status status =
      (*scaled)->Read(name, 0, static_cast<int64_t>(halves.size()), DType::kF16, halves.data());
  REQUIRE_FALSE(status.ok());
  CHECK(status.message().find(name) != absl::string_view::npos);
  CHECK(status.message().find("bfloat16") != absl::string_view::npos);
}

}  // namespace
}  // namespace eventide
