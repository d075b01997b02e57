#include "formats/llama2c.h"

#include <cstring>
#include <utility>

#include "core/status.h"

namespace eventide {
namespace {

constexpr uint64_t kHeaderBytes = 7 * sizeof(int32_t);
constexpr int32_t kVersionedMagic = 0x616b3432;  // "ak42": llama2.c's newer formats

// Limits that keep every product below 2^63: dim * hidden * layers * 4 < 2^17+20+10+2.
constexpr int32_t kLimits[] = {1 << 17, 1 << 20, 1 << 10, 1 << 10, 1 << 10, 1 << 22, 1 << 24};
constexpr const char* kNames[] = {"dim",        "hidden_dim", "n_layers", "n_heads",
                                  "n_kv_heads", "vocab_size", "seq_len"};

}  // namespace

absl::StatusOr<Llama2cHeader> ParseLlama2cHeader(absl::string_view bytes, absl::string_view what) {
  int32_t fields[7];
  if (bytes.size() < kHeaderBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": ", bytes.size(), " bytes are too few for a llama2.c file"));
  }
  std::memcpy(fields, bytes.data(), kHeaderBytes);
  if (fields[0] == kVersionedMagic) {
    return absl::UnimplementedError(absl::StrCat(
        what, ": llama2.c's versioned format; export it as version 0 (legacy) instead"));
  }
  const bool shared = fields[5] > 0;
  if (fields[5] < 0 && fields[5] >= -kLimits[5]) fields[5] = -fields[5];
  for (int i = 0; i < 7; ++i) {
    if (fields[i] < 1 || fields[i] > kLimits[i]) {
      return absl::InvalidArgumentError(absl::StrCat(what, ": ", kNames[i], " would be ", fields[i],
                                                     ", allowed is 1 to ", kLimits[i],
                                                     " (not a llama2.c file?)"));
    }
  }
  const Llama2cHeader header{fields[0], fields[1], fields[2], fields[3],
                             fields[4], fields[5], fields[6], shared};
  if (header.dim % header.heads != 0 || header.dim / header.heads % 2 != 0 ||
      header.heads % header.kv_heads != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": dim ", header.dim, ", n_heads ", header.heads, " and n_kv_heads ",
                     header.kv_heads, " do not go together (not a llama2.c file?)"));
  }
  return header;
}

std::vector<Llama2cTensor> Llama2cLayout(const Llama2cHeader& h, uint64_t* file_bytes) {
  const int64_t layers = h.layers, dim = h.dim, hidden = h.hidden_dim;
  const int64_t head = dim / h.heads, kv = head * h.kv_heads;
  std::vector<Llama2cTensor> tensors = {
      {"token_embedding", {h.vocab, dim}, 0},
      {"rms_att", {layers, dim}, 0},
      {"wq", {layers, dim, dim}, 0},
      {"wk", {layers, kv, dim}, 0},
      {"wv", {layers, kv, dim}, 0},
      {"wo", {layers, dim, dim}, 0},
      {"rms_ffn", {layers, dim}, 0},
      {"w1", {layers, hidden, dim}, 0},
      {"w2", {layers, dim, hidden}, 0},
      {"w3", {layers, hidden, dim}, 0},
      {"rms_final", {dim}, 0},
      {"freq_cis_real", {h.seq_len, head / 2}, 0},
      {"freq_cis_imag", {h.seq_len, head / 2}, 0},
  };
  if (!h.shared_classifier) tensors.push_back({"wcls", {h.vocab, dim}, 0});
  uint64_t offset = kHeaderBytes;
  for (Llama2cTensor& tensor : tensors) {
    tensor.offset = offset;
    uint64_t bytes = sizeof(float);
    for (int64_t extent : tensor.shape) bytes *= uint64_t(extent);
    offset += bytes;
  }
  *file_bytes = offset;
  return tensors;
}

absl::StatusOr<std::unique_ptr<Llama2cFile>> Llama2cFile::Open(const std::string& path) {
  auto result = std::make_unique<Llama2cFile>();
  ASSIGN_OR_RETURN(result->file_, MappedFile::Open(path));
  ASSIGN_OR_RETURN(result->header_, ParseLlama2cHeader(result->file_.text(), path));
  uint64_t bytes = 0;
  result->tensors_ = Llama2cLayout(result->header_, &bytes);
  if (result->file_.size() < bytes) {
    const Llama2cTensor* cut = nullptr;  // the first tensor that is not whole
    for (const Llama2cTensor& tensor : result->tensors_) {
      if (tensor.offset <= result->file_.size()) cut = &tensor;
    }
    return absl::InvalidArgumentError(absl::StrCat(path, ": truncated in tensor ", cut->name,
                                                   ": it has ", result->file_.size(),
                                                   " bytes, its header implies ", bytes));
  }
  if (result->file_.size() > bytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, " has ", result->file_.size(),
                                                   " bytes, its header implies ", bytes,
                                                   " (not a llama2.c file?)"));
  }
  return result;
}

}  // namespace eventide
