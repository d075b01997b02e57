#include "formats/quant.h"

#include <algorithm>
#include <cstring>

#include "core/dtype.h"
#include "core/status.h"
#include "formats/quant_blocks.h"

namespace eventide {
namespace {

constexpr QuantFormat kFormats[] = {
    {QuantType::kF32, "F32", 1, 4},       {QuantType::kF16, "F16", 1, 2},
    {QuantType::kQ4_0, "Q4_0", 32, 18},   {QuantType::kQ4_1, "Q4_1", 32, 20},
    {QuantType::kQ5_0, "Q5_0", 32, 22},   {QuantType::kQ5_1, "Q5_1", 32, 24},
    {QuantType::kQ8_0, "Q8_0", 32, 34},   {QuantType::kQ4_K, "Q4_K", 256, 144},
    {QuantType::kQ5_K, "Q5_K", 256, 176}, {QuantType::kQ6_K, "Q6_K", 256, 210},
    {QuantType::kBF16, "BF16", 1, 2},
};

// Types that files may hold and that are named when they are refused.
struct OtherType {
  uint32_t type;
  const char* name;
};
constexpr OtherType kOtherTypes[] = {
    {9, "Q8_1"},     {10, "Q2_K"},  {11, "Q3_K"},   {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"},
    {18, "IQ3_XXS"}, {19, "IQ1_S"}, {20, "IQ4_NL"}, {21, "IQ3_S"}, {22, "IQ2_S"},   {23, "IQ4_XS"},
    {24, "I8"},      {25, "I16"},   {26, "I32"},    {27, "I64"},   {28, "F64"},     {29, "IQ1_M"},
    {34, "TQ1_0"},   {35, "TQ2_0"}, {39, "MXFP4"},
};

void DequantizeBlock(QuantType type, const unsigned char* block, float* out) {
  switch (type) {
    case QuantType::kQ4_0:
      return DequantizeQ4_0(block, out);
    case QuantType::kQ4_1:
      return DequantizeQ4_1(block, out);
    case QuantType::kQ5_0:
      return DequantizeQ5_0(block, out);
    case QuantType::kQ5_1:
      return DequantizeQ5_1(block, out);
    case QuantType::kQ8_0:
      return DequantizeQ8_0(block, out);
    case QuantType::kQ4_K:
      return DequantizeQ4_K(block, out);
    case QuantType::kQ5_K:
      return DequantizeQ5_K(block, out);
    case QuantType::kQ6_K:
      return DequantizeQ6_K(block, out);
    case QuantType::kF32:
    case QuantType::kF16:
    case QuantType::kBF16:
      break;
  }
  EVT_CHECK(!"a type without blocks");
}

}  // namespace

absl::StatusOr<QuantFormat> FindQuantFormat(uint32_t type) {
  for (const QuantFormat& format : kFormats) {
    if (uint32_t(format.type) == type) return format;
  }
  std::string name = absl::StrCat("number ", type);
  for (const OtherType& other : kOtherTypes) {
    if (other.type == type) name = other.name;
  }
  std::string known;
  for (const QuantFormat& format : kFormats) absl::StrAppend(&known, " ", format.name);
  return absl::UnimplementedError(
      absl::StrCat("tensor type ", name, " is not supported; supported:", known));
}

const QuantFormat& QuantFormatOf(QuantType type) {
  for (const QuantFormat& format : kFormats) {
    if (format.type == type) return format;
  }
  CheckFailed(__FILE__, __LINE__, "a QuantType without a format");
}

void Dequantize(QuantType type, const unsigned char* data, int64_t first, int64_t count,
                float* out) {
  const QuantFormat& format = QuantFormatOf(type);
  if (format.block == 1) {
    const DType from = type == QuantType::kF32   ? DType::kF32
                       : type == QuantType::kF16 ? DType::kF16
                                                 : DType::kBF16;
    ConvertElements(from, data + first * format.block_bytes, DType::kF32, out, size_t(count));
    return;
  }
  float block[kMaxQuantBlock];
  while (count > 0) {
    const int64_t skip = first % format.block;
    const int64_t n = std::min(count, format.block - skip);
    const unsigned char* from = data + first / format.block * format.block_bytes;
    if (n == format.block) {
      DequantizeBlock(type, from, out);
    } else {
      DequantizeBlock(type, from, block);
      std::memcpy(out, block + skip, size_t(n) * sizeof(float));
    }
    out += n;
    first += n;
    count -= n;
  }
}

}  // namespace eventide
