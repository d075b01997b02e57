#include "models/float16_gains.h"

#include <cmath>
#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "core/status.h"

namespace eventide {
namespace {

// A norm of a layer and the linears that read what it is folded into.
struct Norm {
  std::string gain;
  std::vector<std::string> linears;
};

std::vector<Norm> NormsOf(const ModelConfig& config, int layer) {
  const std::string prefix = absl::StrCat("model.layers.", layer, ".");
  const std::string attention = prefix + "self_attn.", mlp = prefix + "mlp.";
  Norm first{prefix + "input_layernorm",
             {attention + "q_proj", attention + "k_proj", attention + "v_proj"}};
  Norm second{prefix + "post_attention_layernorm", {}};
  if (!config.IsMoe()) {
    second.linears = {mlp + "gate_proj", mlp + "up_proj"};
    return {first, second};
  }
  const ExpertNames names = ExpertNamesOf(config, layer);
  second.linears = {names.router};
  for (int expert = 0; expert < config.num_experts; ++expert) {
    for (const char* linear : {names.gate, names.up}) {
      second.linears.push_back(absl::StrCat(names.experts, ".", expert, ".", linear));
    }
  }
  if (config.shared_intermediate > 0) {
    for (const std::string& linear :
         {names.shared_gate, names.shared + ".gate_proj", names.shared + ".up_proj"}) {
      second.linears.push_back(linear);
    }
  }
  return {first, second};
}

class ScaledSource final : public WeightSource {
 public:
  explicit ScaledSource(const WeightSource& source)
      : WeightSource(source.config()), source_(source) {}

  absl::Status Init() {
    for (int layer = 0; layer < config_.layers; ++layer) {
      for (const Norm& norm : NormsOf(config_, layer)) {
        const std::string gain = norm.gain + ".weight";
        ASSIGN_OR_RETURN(const int exponent, Exponent(gain));
        if (exponent == 0) continue;
        exponents_[gain] = -exponent;
        for (const std::string& linear : norm.linears) exponents_[linear + ".weight"] = exponent;
      }
    }
    return absl::OkStatus();
  }

  std::vector<TensorInfo> Tensors() const override { return source_.Tensors(); }
  absl::StatusOr<TensorInfo> Info(absl::string_view name) const override {
    return source_.Info(name);
  }

  absl::Status Read(absl::string_view name, int64_t first, int64_t count, DType as,
                    void* out) const override {
    RETURN_IF_ERROR(source_.Read(name, first, count, as, out));
    const auto found = exponents_.find(name);
    if (found == exponents_.end()) return absl::OkStatus();
    if (as != DType::kF16) {
      return absl::InternalError("only float16 is read from a source scaled for float16");
    }
    uint16_t* values = static_cast<uint16_t*>(out);
    bool finite = true;
    for (int64_t i = 0; i < count; ++i) {
      const float value = F16ToF32(values[i]);
      values[i] = F32ToF16(std::ldexp(value, found->second));
      finite = finite && (!std::isfinite(value) || std::isfinite(F16ToF32(values[i])));
    }
    if (finite) return absl::OkStatus();
    return absl::OutOfRangeError(
        absl::StrCat("tensor '", std::string(name),
                     "' and its norm's gains are beyond float16 together; use bfloat16"));
  }

  const void* Raw(absl::string_view name) const override {
    return exponents_.contains(name) ? nullptr : source_.Raw(name);
  }
  std::optional<DrawnTensor> Drawn(absl::string_view name) const override {
    return exponents_.contains(name) ? std::nullopt : source_.Drawn(name);
  }

 private:
  // The least power of two that the gains do not exceed; 0 where they are at most 1 anyway.
  absl::StatusOr<int> Exponent(const std::string& gain) const {
    if (source_.Drawn(gain)) return 0;
    std::vector<float> values(static_cast<size_t>(config_.hidden));
    RETURN_IF_ERROR(source_.Read(gain, 0, config_.hidden, DType::kF32, values.data()));
    float largest = 1;
    for (const float value : values) {
      if (std::isfinite(value)) largest = std::max(largest, std::fabs(value));
    }
    int exponent;
    const float fraction = std::frexp(largest, &exponent);  // in [0.5, 1)
    return fraction == 0.5f ? exponent - 1 : exponent;
  }

  const WeightSource& source_;
  absl::flat_hash_map<std::string, int> exponents_;  // what a tensor's values are shifted by
};

}  // namespace

absl::StatusOr<std::unique_ptr<WeightSource>> WithFloat16Gains(const WeightSource& source) {
  auto scaled = std::make_unique<ScaledSource>(source);
  RETURN_IF_ERROR(scaled->Init());
  return scaled;
}

}  // namespace eventide
