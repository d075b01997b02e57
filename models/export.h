// Writes any loaded model as a Hugging Face folder, so that others can load what Eventide loaded.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/dtype.h"
#include "models/weights.h"

namespace eventide {

// A text that lies beside the weights, such as a tokenizer.
struct ExportFile {
  std::string name, content;
};

struct ExportOptions {
  // A shard ends before the tensor that would take it beyond this.
  int64_t max_shard_bytes = int64_t{4} << 30;
  // Called now and then with bytes written so far and in all; may be null.
  std::function<void(int64_t done, int64_t total)> progress = nullptr;
  // Asked now and then; true ends the export as cancelled. May be null.
  std::function<bool()> stop = nullptr;
  std::vector<ExportFile> files = {};
};

// Writes config.json and model.safetensors (several shards and an index where one would be too
// large) and options.files into `folder`, which is created if absent. Refuses a folder that already
// holds a model or one of the files.
// Files appear under their names only when complete, config.json last. An export that fails or is stopped
// leaves nothing behind.
absl::Status ExportHuggingFace(const WeightSource& source, DType dtype, const std::string& folder,
                               const ExportOptions& options = {});

}  // namespace eventide
