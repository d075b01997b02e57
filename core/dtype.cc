#include "core/dtype.h"

#include <cstring>
#include <iterator>

#include "core/status.h"

namespace eventide {
namespace {

struct Row {
  const char* name;
  size_t size;
};

// In the order of DType.
constexpr Row kRows[] = {
    {"float32", 4},     {"float16", 2}, {"bfloat16", 2}, {"float64", 8}, {"float8_e4m3fn", 1},
    {"float8_e5m2", 1}, {"int64", 8},   {"int32", 4},    {"int16", 2},   {"int8", 1},
    {"uint64", 8},      {"uint32", 4},  {"uint16", 2},   {"uint8", 1},   {"bool", 1},
};
static_assert(std::size(kRows) == size_t(DType::kBool) + 1);

template <typename In, typename Out, typename Function>
void Map(const void* in, void* out, size_t count, Function function) {
  // memcpy per element: checkpoints need not align what they store.
  for (size_t i = 0; i < count; ++i) {
    In value;
    std::memcpy(&value, static_cast<const char*>(in) + i * sizeof(In), sizeof(In));
    const Out result = function(value);
    std::memcpy(static_cast<char*>(out) + i * sizeof(Out), &result, sizeof(Out));
  }
}

}  // namespace

size_t DTypeSize(DType type) {
  return kRows[size_t(type)].size;
}

const char* DTypeName(DType type) {
  return kRows[size_t(type)].name;
}

std::optional<DType> DTypeFromName(absl::string_view name) {
  for (size_t i = 0; i < std::size(kRows); ++i) {
    if (name == kRows[i].name) return DType(i);
  }
  return std::nullopt;
}

void ConvertElements(DType from, const void* in, DType to, void* out, size_t count) {
  EVT_CHECK(IsWeightDType(from) && IsWeightDType(to));
  if (count == 0) return;
  if (from == to) {
    std::memmove(out, in, count * DTypeSize(from));
  } else if (from == DType::kBF16 && to == DType::kF32) {
    Map<uint16_t, float>(in, out, count, BF16ToF32);
  } else if (from == DType::kF16 && to == DType::kF32) {
    Map<uint16_t, float>(in, out, count, F16ToF32);
  } else if (from == DType::kF32 && to == DType::kBF16) {
    Map<float, uint16_t>(in, out, count, F32ToBF16);
  } else if (from == DType::kF32) {
    Map<float, uint16_t>(in, out, count, F32ToF16);
  } else if (from == DType::kF16) {
    Map<uint16_t, uint16_t>(in, out, count, [](uint16_t x) { return F32ToBF16(F16ToF32(x)); });
  } else {
    Map<uint16_t, uint16_t>(in, out, count, [](uint16_t x) { return F32ToF16(BF16ToF32(x)); });
  }
}

}  // namespace eventide
