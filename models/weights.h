// Where weights come from. Whatever the file, tensors have Hugging Face names and layouts: q and k
// rows in half-rotation order, experts one tensor each, row-major with the last dimension
// contiguous.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/dtype.h"
#include "models/config.h"

namespace eventide {

struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;  // kF32 for quantised tensors: it holds their values exactly
  std::vector<int64_t> shape;

  int64_t Elements() const {
    int64_t product = 1;
    for (int64_t extent : shape) product *= extent;
    return product;
  }
  bool operator==(const TensorInfo&) const = default;
};

// How a tensor that is stored nowhere is made (models/random_weights.h).
struct DrawnTensor {
  uint64_t key = 0;
  bool norm = false;
};

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  WeightSource(const WeightSource&) = delete;
  WeightSource& operator=(const WeightSource&) = delete;

  const ModelConfig& config() const { return config_; }

  // All tensors, those that a model does not use included, in the source's order.
  virtual std::vector<TensorInfo> Tensors() const = 0;

  // NotFound, with the name, for a tensor that is not there.
  virtual absl::StatusOr<TensorInfo> Info(absl::string_view name) const = 0;

  // Writes elements [first, first + count) as float32, float16 or bfloat16 to `out`, which holds
  // count * DTypeSize(as) bytes. May be called from many threads at once.
  virtual absl::Status Read(absl::string_view name, int64_t first, int64_t count, DType as,
                            void* out) const = 0;

  // The whole tensor where its bytes lie in memory in Info(name).dtype and in order; else null. Not
  // necessarily aligned. Valid as long as the source.
  virtual const void* Raw(absl::string_view name) const {
    (void)name;
    return nullptr;
  }

  // For a tensor of this source whose elements are drawn at random: a device can draw the same bits.
  virtual std::optional<DrawnTensor> Drawn(absl::string_view name) const {
    (void)name;
    return std::nullopt;
  }

 protected:
  explicit WeightSource(ModelConfig config) : config_(std::move(config)) {}
  ModelConfig config_;
};

// The tensors that a model of this configuration has: names and shapes, in order of use; dtype is
// config.dtype. A tied lm_head is not among them.
std::vector<TensorInfo> ExpectedTensors(const ModelConfig& config);

// What a family calls the parts of one layer of experts, without ".weight". An expert's projections are
// `experts`.<number>.`gate` and so on; the shared expert is an MLP called `shared`.
struct ExpertNames {
  std::string router, experts;
  const char *gate, *up, *down;
  std::string shared, shared_gate;
};
ExpertNames ExpertNamesOf(const ModelConfig& config, int layer);

// Refuses a source that lacks a tensor of its configuration, has one of another shape or of a type
// that Eventide does not compute with, or has one that the model would not use. Names them all (up
// to a few). Tables that can be recomputed (rotary_emb.inv_freq) and a tied lm_head are ignored.
absl::Status CheckComplete(const WeightSource& source);

// Shared by implementations of Read: refuses a range outside the tensor and a type that is no
// weight.
absl::Status CheckRead(const TensorInfo& info, int64_t first, int64_t count, DType as);

// "[2, 3]".
std::string ShapeString(const std::vector<int64_t>& shape);

}  // namespace eventide
