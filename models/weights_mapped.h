// Weights that lie in mapped files: a table of views that Read converts from. What differs between
// formats (names, block formats, row orders) is in the views.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "core/phases.h"
#include "formats/gguf.h"
#include "formats/llama2c.h"
#include "formats/quant.h"
#include "formats/safetensors.h"
#include "models/weights.h"

namespace eventide {

struct WeightView {
  TensorInfo info;
  const unsigned char* data = nullptr;
  // The block format of the bytes; nothing: they are info.dtype as they lie.
  std::optional<QuantType> quant;
  int64_t base = 0;  // elements of `data` before this tensor (one expert of a stack)
  // Above 0: rows are stored with rotated pairs side by side (2i, 2i + 1 of a head of this size)
  // and are read with the halves apart (i, i + head_dim / 2).
  int paired_head_dim = 0;
};

class MappedWeights final : public WeightSource {
 public:
  // `file` owns the bytes that the views point to. Names must differ.
  MappedWeights(ModelConfig config, std::shared_ptr<const void> file,
                std::vector<WeightView> views);

  std::vector<TensorInfo> Tensors() const override;
  absl::StatusOr<TensorInfo> Info(absl::string_view name) const override;
  absl::Status Read(absl::string_view name, int64_t first, int64_t count, DType as,
                    void* out) const override;
  const void* Raw(absl::string_view name) const override;

 private:
  std::shared_ptr<const void> file_;
  std::vector<WeightView> views_;
  absl::flat_hash_map<std::string, size_t> index_;
};

// The three kinds of file as sources. They check what they need to build views; CheckComplete is
// the caller's.
absl::StatusOr<std::unique_ptr<WeightSource>> OpenHuggingFaceFolder(const std::string& folder,
                                                                    PhaseLog* phases = nullptr);
absl::StatusOr<std::unique_ptr<WeightSource>> OpenGguf(const std::string& path,
                                                       PhaseLog* phases = nullptr);
absl::StatusOr<std::unique_ptr<WeightSource>> OpenLlama2c(const std::string& path);

}  // namespace eventide
