// The one door to models: whatever --model may say becomes a WeightSource that has been checked.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "core/phases.h"
#include "models/weights.h"

namespace eventide {

// `spec` is random:<preset>[@seed], a Hugging Face folder (config.json and safetensors), a GGUF
// file, or a llama2.c .bin file. The result passes CheckComplete.
// `phases` take weights_map and config.
absl::StatusOr<std::unique_ptr<WeightSource>> OpenModel(const std::string& spec,
                                                        PhaseLog* phases = nullptr);

}  // namespace eventide
