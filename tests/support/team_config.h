// A small decoder in whose linears tasks work together where there are many tokens (LinearParams::team), which the test
// presets' shapes do not allow.
#pragma once

#include "models/presets.h"

namespace eventide {

inline ModelConfig TeamConfig() {
  ModelConfig config = *PresetConfig("test-llama");
  config.layers = 2;
  config.hidden = 256;
  config.heads = 8;
  config.kv_heads = 4;
  config.intermediate = 2048;  // gate and up have tiles of 32 rows
  return config;
}

}  // namespace eventide
