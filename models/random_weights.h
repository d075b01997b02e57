// Weights made up on the spot: "random:<preset>[@seed]". The bits are a function of the seed, the
// tensor's name and the element index alone, the same on the host and on a device:
//   key = RandomTensorKey(name, seed); block = Philox4x32(key, index / 4);
//   value = DrawWeight(block.lane[index % 4], IsNormTensor(name)), rounded to the preset's dtype:
//   0.02 times a standard normal, or 1 + 0.1 times one for norms.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "device/base.h"
#include "models/weights.h"

namespace eventide {

// FNV-1a (64 bit) of the name, xor the seed through splitmix64's finaliser, through it once more.
u64 RandomTensorKey(absl::string_view name, u64 seed);

// Whether a tensor of this name is drawn around 1 (RMS norm weights) and not around 0.
bool IsNormTensor(absl::string_view name);

std::unique_ptr<WeightSource> RandomWeights(ModelConfig config, u64 seed);

// `spec` is what follows "random:": a preset's name, optionally "@" and a decimal seed (default 0).
absl::StatusOr<std::unique_ptr<WeightSource>> OpenRandomWeights(absl::string_view spec);

}  // namespace eventide
