// From a checkpoint's tensors to the form that kernels read: packed tiles (device/layout.h), biases in
// packed row order, plain rows. A PackJob says where each row comes from and nothing about how it
// is done, so that another packer (on the GPU) can do the same jobs.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/dtype.h"
#include "core/phases.h"
#include "models/weights.h"

namespace eventide {

// Rows of a packed tile where a job does not say otherwise; bits do not depend on it.
inline constexpr int kTileRows = 32;
// The height of a linear's tiles: small linears have too few tiles of 32 rows to keep every worker busy.
constexpr int TileRows(int64_t packed_rows) { return packed_rows > 16 * 128 ? kTileRows : 16; }

// Rows [packed_row, packed_row + rows) are rows [source_row, ...) of source `source`.
struct RowSpan {
  int64_t packed_row = 0;
  int source = 0;
  int64_t source_row = 0;
  int64_t rows = 0;
};

enum class PackForm {
  kTiles,  // tiles of PackJob::height rows, K padded with zeros to whole steps of all segments
  kRows,   // row-major
};

// Fills bytes [offset, offset + PackedBytes) of a program's tensor. Rows that no span names are
// zero.
struct PackJob {
  int tensor = -1;
  int64_t offset = 0;
  PackForm form = PackForm::kRows;
  int64_t rows = 0;  // a multiple of `height` for kTiles
  int columns = 0;   // 1 for vectors
  int height = kTileRows;  // of tiles, a multiple of 16
  std::vector<std::string> sources;
  std::vector<RowSpan> spans;  // ascending packed_row, disjoint
};

int64_t PackedBytes(const PackJob& job, DType storage);
// Of the first `rows` rows, whole tiles of them.
int64_t PackedBytes(const PackJob& job, int64_t rows, DType storage);

// Where element (row, k) of a 16 x 16 fragment lies, 0 ... 255: the target's word (port_example.h).
using FragmentOrder = int32_t (*)(int32_t row, int32_t k);

// Takes finished bytes; called from several threads at once, never for overlapping ranges.
using WeightSink =
    std::function<absl::Status(int tensor, int64_t offset, const void* data, int64_t bytes)>;

struct PackOptions {
  DType storage = DType::kF32;
  FragmentOrder order = nullptr;
  int threads = 2;
  // Serialised; `done` grows from 0 to `total`, in bytes.
  std::function<void(int64_t done, int64_t total)> progress;
  // Takes weights_read: what the calling thread spends on reading stored weights, or on waiting for them.
  PhaseLog* phases = nullptr;
};

// Source position within a fragment, row * 16 + k, of each packed element: an order inverted. An error if
// it is no permutation.
using FragmentGather = std::array<uint8_t, 256>;
absl::StatusOr<FragmentGather> InvertOrder(FragmentOrder order);

// Rows that are packed together: those of a tile, or enough narrow ones to be worth a call.
int64_t UnitRows(const PackJob& job);

// Beyond the sink's memory this needs two tiles per thread. The first error ends all threads.
absl::Status PackWeights(const WeightSource& source, absl::Span<const PackJob> jobs,
                         const PackOptions& options, const WeightSink& sink);

// The inverse of kTiles: row-major [rows][columns] of `element_bytes` each, padding rows included.
std::vector<uint8_t> UnpackTiles(const uint8_t* packed, int64_t rows, int columns, int height,
                                 int element_bytes, FragmentOrder order);

}  // namespace eventide
