// The grammar of GGUF and every check on it. Each number in the file is untrusted: nothing is
// allocated or added before it has been compared with what the file can hold.
#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <set>
#include <utility>

#include "core/status.h"
#include "formats/gguf.h"

namespace eventide {

static_assert(std::endian::native == std::endian::little, "files are read as they lie");

namespace {

constexpr uint64_t kMaxKeyBytes = 65535;
constexpr uint64_t kMaxNameBytes = 1024;
constexpr uint32_t kMaxDims = 4;
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kMaxAlignment = 1 << 20;

// Numbers of the value types in the file.
enum ValueType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64
};

// Bytes of one value, at least: what bounds the length of an array before it is allocated.
constexpr uint64_t kMinimumBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};

}  // namespace

class GgufParser {
 public:
  GgufParser(absl::string_view bytes, absl::string_view what) : bytes_(bytes), what_(what) {}

  absl::Status Run(GgufFile* file) {
    uint64_t tensors = 0, keys = 0;
    RETURN_IF_ERROR(ReadHeader(&tensors, &keys));
    for (uint64_t i = 0; i < keys; ++i) RETURN_IF_ERROR(ReadKey(file));
    ASSIGN_OR_RETURN(const uint64_t alignment, Alignment(*file));
    for (uint64_t i = 0; i < tensors; ++i) RETURN_IF_ERROR(ReadTensor(file, alignment));
    return Place(file, alignment);
  }

 private:
  absl::Status Error(absl::string_view text) const {
    return absl::InvalidArgumentError(absl::StrCat(what_, ": ", text));
  }

  uint64_t Left() const { return bytes_.size() - at_; }

  template <typename T>
  absl::Status Read(T* value) {
    if (Left() < sizeof(T)) {
      return Error(
          absl::StrCat("ends at byte ", bytes_.size(), ", inside its header (truncated?)"));
    }
    std::memcpy(value, bytes_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return absl::OkStatus();
  }

  absl::Status ReadText(std::string* text, uint64_t limit, absl::string_view role) {
    uint64_t length = 0;
    RETURN_IF_ERROR(Read(&length));
    if (length > Left() || length > limit) {
      return Error(absl::StrCat(role, " of ", length, " bytes at byte ", at_, ", where ", Left(),
                                " bytes are left and ", limit, " is the limit"));
    }
    *text = std::string(bytes_.substr(at_, length));
    at_ += length;
    return absl::OkStatus();
  }

  absl::Status ReadHeader(uint64_t* tensors, uint64_t* keys) {
    if (bytes_.substr(0, 4) != "GGUF") return Error("does not start with GGUF");
    at_ = 4;
    uint32_t version = 0;
    RETURN_IF_ERROR(Read(&version));
    if ((version & 0xffff) == 0 && version != 0) return Error("a big-endian file; not supported");
    if (version != 2 && version != 3) {
      return Error(absl::StrCat("GGUF version ", version, "; versions 2 and 3 are supported"));
    }
    RETURN_IF_ERROR(Read(tensors));
    RETURN_IF_ERROR(Read(keys));
    if (*tensors > kMaxGgufTensors) {
      return Error(absl::StrCat(*tensors, " tensors; the limit is ", kMaxGgufTensors));
    }
    if (*keys > kMaxGgufKeys) {
      return Error(absl::StrCat(*keys, " metadata keys; the limit is ", kMaxGgufKeys));
    }
    return absl::OkStatus();
  }

  template <typename T, typename Wide>
  absl::Status ReadNumber(GgufValue* value) {
    T number{};
    RETURN_IF_ERROR(Read(&number));
    *value = GgufValue(Wide(number));
    return absl::OkStatus();
  }

  absl::Status ReadValue(uint32_t type, int depth, GgufValue* value) {
    switch (type) {
      case kU8:
        return ReadNumber<uint8_t, uint64_t>(value);
      case kI8:
        return ReadNumber<int8_t, int64_t>(value);
      case kU16:
        return ReadNumber<uint16_t, uint64_t>(value);
      case kI16:
        return ReadNumber<int16_t, int64_t>(value);
      case kU32:
        return ReadNumber<uint32_t, uint64_t>(value);
      case kI32:
        return ReadNumber<int32_t, int64_t>(value);
      case kF32:
        return ReadNumber<float, double>(value);
      case kU64:
        return ReadNumber<uint64_t, uint64_t>(value);
      case kI64:
        return ReadNumber<int64_t, int64_t>(value);
      case kF64:
        return ReadNumber<double, double>(value);
      case kBool: {
        uint8_t flag = 0;
        RETURN_IF_ERROR(Read(&flag));
        if (flag > 1) return Error(absl::StrCat("a truth value of ", int{flag}, " at byte ", at_));
        *value = GgufValue(flag == 1);
        return absl::OkStatus();
      }
      case kString: {
        std::string text;
        RETURN_IF_ERROR(ReadText(&text, Left(), "a string"));
        *value = GgufValue(std::move(text));
        return absl::OkStatus();
      }
      case kArray:
        return ReadArray(depth, value);
      default:
        return Error(absl::StrCat("metadata value type ", type, " at byte ", at_));
    }
  }

  absl::Status ReadArray(int depth, GgufValue* value) {
    uint32_t type = 0;
    uint64_t count = 0;
    RETURN_IF_ERROR(Read(&type));
    RETURN_IF_ERROR(Read(&count));
    if (type > kF64) return Error(absl::StrCat("array element type ", type, " at byte ", at_));
    if (depth >= kMaxGgufArrayDepth) {
      return Error(absl::StrCat("arrays nested deeper than ", kMaxGgufArrayDepth));
    }
    if (count > Left() / kMinimumBytes[type] || count > kMaxGgufArray - array_elements_) {
      return Error(absl::StrCat("an array of ", count, " elements at byte ", at_, ", where ",
                                Left(), " bytes are left; all arrays together may have ",
                                kMaxGgufArray));
    }
    array_elements_ += count;
    GgufValue::Array array(count);
    for (GgufValue& element : array) RETURN_IF_ERROR(ReadValue(type, depth + 1, &element));
    *value = GgufValue(std::move(array));
    return absl::OkStatus();
  }

  absl::Status ReadKey(GgufFile* file) {
    std::string key;
    RETURN_IF_ERROR(ReadText(&key, kMaxKeyBytes, "a metadata key"));
    uint32_t type = 0;
    RETURN_IF_ERROR(Read(&type));
    GgufValue value;
    if (absl::Status status = ReadValue(type, 0, &value); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(status.message(), " (key ", key, ")"));
    }
    if (!file->metadata_.emplace(key, std::move(value)).second) {
      return Error(absl::StrCat("metadata key ", key, " appears twice"));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<uint64_t> Alignment(const GgufFile& file) const {
    ASSIGN_OR_RETURN(const int64_t alignment,
                     file.Integer("general.alignment", kDefaultAlignment, 1, kMaxAlignment));
    if (!std::has_single_bit(uint64_t(alignment))) {
      return Error(absl::StrCat("general.alignment ", alignment, " is no power of two"));
    }
    return uint64_t(alignment);
  }

  absl::Status ReadTensor(GgufFile* file, uint64_t alignment) {
    GgufTensor tensor;
    RETURN_IF_ERROR(ReadText(&tensor.name, kMaxNameBytes, "a tensor name"));
    auto error = [&](absl::string_view text) {
      return Error(absl::StrCat("tensor ", tensor.name, ": ", text));
    };
    uint32_t dims = 0, type = 0;
    RETURN_IF_ERROR(Read(&dims));
    if (dims > kMaxDims) return error(absl::StrCat(dims, " dimensions; the limit is ", kMaxDims));
    uint64_t elements = 1;
    for (uint32_t i = 0; i < dims; ++i) {
      uint64_t extent = 0;
      RETURN_IF_ERROR(Read(&extent));
      if (extent == 0) return error("an extent of 0");
      if (__builtin_mul_overflow(elements, extent, &elements) ||
          elements > uint64_t(std::numeric_limits<int64_t>::max()) ||
          extent > (uint64_t{1} << 62)) {
        return error("its number of elements overflows");
      }
      tensor.shape.insert(tensor.shape.begin(), int64_t(extent));
    }
    RETURN_IF_ERROR(Read(&type));
    absl::StatusOr<QuantFormat> format = FindQuantFormat(type);
    if (!format.ok()) {
      return absl::Status(format.status().code(), error(format.status().message()).message());
    }
    tensor.type = format->type;
    const uint64_t row = tensor.shape.empty() ? 1 : uint64_t(tensor.shape.back());
    if (row % uint64_t(format->block) != 0) {
      return error(absl::StrCat("rows of ", row, " elements in blocks of ", format->block));
    }
    if (__builtin_mul_overflow(elements / uint64_t(format->block), uint64_t(format->block_bytes),
                               &tensor.bytes)) {
      return error("its number of bytes overflows");
    }
    uint64_t offset = 0;
    RETURN_IF_ERROR(Read(&offset));
    if (offset % alignment != 0) {
      return error(absl::StrCat("offset ", offset, " is not a multiple of ", alignment));
    }
    offsets_.push_back(offset);
    if (!file->tensor_index_.emplace(tensor.name, file->tensors_.size()).second) {
      return error("appears twice");
    }
    file->tensors_.push_back(std::move(tensor));
    return absl::OkStatus();
  }

  // Points tensors at their data, which must lie in the file and not overlap.
  absl::Status Place(GgufFile* file, uint64_t alignment) {
    const uint64_t start = (at_ + alignment - 1) / alignment * alignment;
    const uint64_t data_bytes = bytes_.size() > start ? bytes_.size() - start : 0;
    std::vector<size_t> order;
    for (size_t i = 0; i < file->tensors_.size(); ++i) {
      GgufTensor& tensor = file->tensors_[i];
      if (offsets_[i] > data_bytes || tensor.bytes > data_bytes - offsets_[i]) {
        return Error(absl::StrCat("tensor ", tensor.name, " needs ", tensor.bytes, " bytes at ",
                                  offsets_[i], ", but the file has only ", data_bytes,
                                  " bytes of data (truncated?)"));
      }
      tensor.data = reinterpret_cast<const unsigned char*>(bytes_.data()) + start + offsets_[i];
      if (tensor.bytes > 0) order.push_back(i);
    }
    std::sort(order.begin(), order.end(),
              [&](size_t a, size_t b) { return offsets_[a] < offsets_[b]; });
    for (size_t i = 1; i < order.size(); ++i) {
      const GgufTensor& before = file->tensors_[order[i - 1]];
      if (offsets_[order[i - 1]] + before.bytes > offsets_[order[i]]) {
        return Error(absl::StrCat("tensors ", before.name, " and ", file->tensors_[order[i]].name,
                                  " overlap"));
      }
    }
    return absl::OkStatus();
  }

  absl::string_view bytes_;
  absl::string_view what_;
  uint64_t at_ = 0;
  uint64_t array_elements_ = 0;
  std::vector<uint64_t> offsets_;
};

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::Open(const std::string& path) {
  auto result = std::make_unique<GgufFile>();
  result->path_ = path;
  ASSIGN_OR_RETURN(result->file_, MappedFile::Open(path));
  RETURN_IF_ERROR(GgufParser(result->file_.text(), path).Run(result.get()));
  return result;
}

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::Parse(absl::string_view bytes,
                                                          absl::string_view what) {
  auto result = std::make_unique<GgufFile>();
  result->path_ = std::string(what);
  RETURN_IF_ERROR(GgufParser(bytes, what).Run(result.get()));
  return result;
}

}  // namespace eventide
