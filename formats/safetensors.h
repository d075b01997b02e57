// Safetensors: one file, or a folder of shards with model.safetensors.index.json. Everything is
// checked when opened; afterwards a tensor is a pointer into the mapped file.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/dtype.h"
#include "formats/mapped_file.h"

namespace eventide {

inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;

struct SafetensorsEntry {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // bytes, from the start of the data section
  uint64_t end = 0;
};

// The tensors that a file of these bytes describes, in order of their offsets. Refuses what the
// reference implementation refuses: a header that is too long, does not start with '{', repeats a
// key, or describes tensors that overlap, leave holes, do not fill the file, or whose size is not
// that of their shape. `what` names the file in errors. `*data_offset`: where the data section
// starts.
absl::StatusOr<std::vector<SafetensorsEntry>> ParseSafetensors(absl::string_view bytes,
                                                               absl::string_view what,
                                                               uint64_t* data_offset);

// The eight length bytes and the header for tensors of these names, types and shapes, laid out in
// order; fills in begin and end.
std::string SafetensorsHeader(std::vector<SafetensorsEntry>* entries);

class Safetensors {
 public:
  struct Tensor {
    SafetensorsEntry entry;
    const void* data;
  };

  static absl::StatusOr<std::unique_ptr<Safetensors>> OpenFile(const std::string& path);

  // model.safetensors.index.json and the shards it names, or else model.safetensors.
  static absl::StatusOr<std::unique_ptr<Safetensors>> OpenFolder(const std::string& folder);

  const std::vector<Tensor>& tensors() const { return tensors_; }
  // Null if there is none.
  const Tensor* Find(absl::string_view name) const;

 private:
  absl::Status AddFile(const std::string& path);

  std::vector<MappedFile> files_;
  std::vector<Tensor> tensors_;
  absl::flat_hash_map<std::string, size_t> index_;
};

}  // namespace eventide
