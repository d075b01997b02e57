// Configurations known by name: the true shapes of published models, and small ones for tests.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "models/config.h"

namespace eventide {

// InvalidArgument, listing the names, for a name that is not one of PresetNames().
absl::StatusOr<ModelConfig> PresetConfig(absl::string_view name);

std::vector<std::string> PresetNames();

}  // namespace eventide
