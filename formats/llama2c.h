// llama2.c's legacy .bin: seven int32, then float32 tensors in a fixed order. It has no magic
// number, so the header must be plausible and the size must be exactly what the header implies.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "formats/mapped_file.h"

namespace eventide {

struct Llama2cHeader {
  int dim, hidden_dim, layers, heads, kv_heads, vocab, seq_len;
  bool shared_classifier;  // the file's vocabulary size is negative where it is not shared
};

// Everything between the header and the end, in the file's order. Per-layer tensors are stacked.
struct Llama2cTensor {
  const char* name;            // llama2.c's own: token_embedding, wq, ...
  std::vector<int64_t> shape;  // stacked tensors: layers first
  uint64_t offset;             // bytes from the start of the file
};

class Llama2cFile {
 public:
  static absl::StatusOr<std::unique_ptr<Llama2cFile>> Open(const std::string& path);

  const Llama2cHeader& header() const { return header_; }
  const std::vector<Llama2cTensor>& tensors() const { return tensors_; }
  const unsigned char* data(const Llama2cTensor& tensor) const {
    return file_.data() + tensor.offset;
  }

 private:
  MappedFile file_;
  Llama2cHeader header_;
  std::vector<Llama2cTensor> tensors_;
};

// The header of a file that starts with these bytes.
absl::StatusOr<Llama2cHeader> ParseLlama2cHeader(absl::string_view bytes, absl::string_view what);

// The tensors of such a file; `*file_bytes`: how long it must be.
std::vector<Llama2cTensor> Llama2cLayout(const Llama2cHeader& header, uint64_t* file_bytes);

}  // namespace eventide
