#include "models/weights_mapped.h"

#include <algorithm>
#include <utility>

#include "core/status.h"

namespace eventide {
namespace {

void ReadPlain(const WeightView& view, int64_t first, int64_t count, DType as, char* out) {
  first += view.base;
  if (!view.quant) {
    const size_t size = DTypeSize(view.info.dtype);
    ConvertElements(view.info.dtype, view.data + size_t(first) * size, as, out, size_t(count));
    return;
  }
  float values[1024];
  while (count > 0) {
    const int64_t n = std::min<int64_t>(count, std::size(values));
    Dequantize(*view.quant, view.data, first, n, values);
    ConvertElements(DType::kF32, values, as, out, size_t(n));
    out += size_t(n) * DTypeSize(as);
    first += n;
    count -= n;
  }
}

// Row r of the half-rotation order: which stored row holds it.
int64_t StoredRow(int64_t row, int64_t head_dim) {
  const int64_t in_head = row % head_dim, half = head_dim / 2;
  return row - in_head + 2 * (in_head % half) + in_head / half;
}

void ReadPaired(const WeightView& view, int64_t first, int64_t count, DType as, char* out) {
  const int64_t columns = view.info.shape.size() == 1 ? 1 : view.info.shape.back();
  while (count > 0) {
    const int64_t row = first / columns, column = first % columns;
    const int64_t n = std::min(count, columns - column);
    ReadPlain(view, StoredRow(row, view.paired_head_dim) * columns + column, n, as, out);
    out += size_t(n) * DTypeSize(as);
    first += n;
    count -= n;
  }
}

}  // namespace

MappedWeights::MappedWeights(ModelConfig config, std::shared_ptr<const void> file,
                             std::vector<WeightView> views)
    : WeightSource(std::move(config)), file_(std::move(file)), views_(std::move(views)) {
  for (size_t i = 0; i < views_.size(); ++i) {
    EVT_CHECK(index_.emplace(views_[i].info.name, i).second);
  }
}

std::vector<TensorInfo> MappedWeights::Tensors() const {
  std::vector<TensorInfo> result;
  for (const WeightView& view : views_) result.push_back(view.info);
  return result;
}

absl::StatusOr<TensorInfo> MappedWeights::Info(absl::string_view name) const {
  auto it = index_.find(name);
  if (it == index_.end()) return absl::NotFoundError(absl::StrCat("no tensor ", name));
  return views_[it->second].info;
}

absl::Status MappedWeights::Read(absl::string_view name, int64_t first, int64_t count, DType as,
                                 void* out) const {
  auto it = index_.find(name);
  if (it == index_.end()) return absl::NotFoundError(absl::StrCat("no tensor ", name));
  const WeightView& view = views_[it->second];
  RETURN_IF_ERROR(CheckRead(view.info, first, count, as));
  if (view.paired_head_dim > 0) {
    ReadPaired(view, first, count, as, static_cast<char*>(out));
  } else {
    ReadPlain(view, first, count, as, static_cast<char*>(out));
  }
  return absl::OkStatus();
}

const void* MappedWeights::Raw(absl::string_view name) const {
  auto it = index_.find(name);
  if (it == index_.end()) return nullptr;
  const WeightView& view = views_[it->second];
  if (view.quant || view.paired_head_dim > 0) return nullptr;
  return view.data + size_t(view.base) * DTypeSize(view.info.dtype);
}

}  // namespace eventide
