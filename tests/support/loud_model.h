// A model like those whose residual has a column far above the others ("massive activations"):
// test-llama with a column of thousands in its embedding and gains of 24 for it.
#pragma once

#include <cmath>

#include "core/dtype.h"
#include "models/presets.h"
#include "models/random_weights.h"
#include "tests/support/test.h"

namespace eventide {

class LoudModel final : public WeightSource {
 public:
  static constexpr int kColumn = 5;
  static constexpr float kResidual = 4096, kGain = 24;

  // `weight`: an element of the first layer's up projection that is not as drawn; 0: none.
  explicit LoudModel(float weight = 0, const char* preset = "test-llama")
      : WeightSource(*PresetConfig(preset)),
        source_(RandomWeights(config_, 11)),
        weight_(weight) {}

  std::vector<TensorInfo> Tensors() const override { return source_->Tensors(); }
  absl::StatusOr<TensorInfo> Info(absl::string_view name) const override {
    return source_->Info(name);
  }
  absl::Status Read(absl::string_view name, int64_t first, int64_t count, DType as,
                    void* out) const override {
    const absl::Status status = source_->Read(name, first, count, as, out);
    const std::string text(name);
    for (int64_t i = 0; i < count && status.ok(); ++i) {
      const bool loud = (first + i) % config_.hidden == kColumn;
      if (text == "model.embed_tokens.weight" && loud) Put(as, i, kResidual, out);
      if (text.find("layernorm.weight") != std::string::npos && loud) Put(as, i, kGain, out);
      if (text == "model.layers.0.mlp.up_proj.weight" && first + i == 7 && weight_ != 0) {
        Put(as, i, weight_, out);
      }
    }
    return status;
  }

 private:
  static void Put(DType as, int64_t at, float value, void* out) {
    if (as == DType::kF32) static_cast<float*>(out)[at] = value;
    if (as == DType::kF16) static_cast<uint16_t*>(out)[at] = F32ToF16(value);
    if (as == DType::kBF16) static_cast<uint16_t*>(out)[at] = F32ToBF16(value);
  }
  std::unique_ptr<WeightSource> source_;
  float weight_;
};

}  // namespace eventide
