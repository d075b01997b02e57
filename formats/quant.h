// The block formats of GGUF tensors and what their bits mean as floats.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"

namespace eventide {

// Values are those of the files.
enum class QuantType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kBF16 = 30,
};

struct QuantFormat {
  QuantType type;
  const char* name;
  int64_t block;        // elements
  int64_t block_bytes;  // bytes
};

inline constexpr int64_t kMaxQuantBlock = 256;

// Unimplemented, naming it, for a type that Eventide does not read.
absl::StatusOr<QuantFormat> FindQuantFormat(uint32_t type);

const QuantFormat& QuantFormatOf(QuantType type);

// Writes elements [first, first + count) of a tensor whose blocks start at `data`. Products and
// sums are rounded to float one by one, as in the Python package `gguf`, so the bits are the same.
void Dequantize(QuantType type, const unsigned char* data, int64_t first, int64_t count,
                float* out);

}  // namespace eventide
