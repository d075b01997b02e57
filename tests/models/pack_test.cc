#include "models/pack.h"

#include <cstring>
#include <mutex>

#include "core/status.h"
#include "models/presets.h"
#include "models/random_weights.h"
#include "device/layout.h"
#include "tests/support/test.h"

namespace eventide {
namespace {

int32_t PlainOrder(int32_t row, int32_t k) {
  return row * 16 + k;
}
// Any permutation will do: 5 is odd, so this one is.
int32_t ShuffledOrder(int32_t row, int32_t k) {
  return ((row * 16 + k) * 5 + 3) % 256;
}
int32_t BrokenOrder(int32_t row, int32_t) {
  return row;
}

std::unique_ptr<WeightSource> Weights() {
  return RandomWeights(*PresetConfig("test-llama"), 7);
}

// Rows 3 ... 42 of down_proj (K = 512) at packed row 5, then nothing, then rows of another tensor.
PackJob ExampleJob() {
  PackJob job;
  job.tensor = 4;
  job.offset = 96;
  job.form = PackForm::kTiles;
  job.rows = 96;
  job.columns = 192;
  job.sources = {"model.layers.0.self_attn.q_proj.weight", "model.layers.2.mlp.up_proj.weight"};
  job.spans = {{5, 0, 3, 40}, {50, 1, 500, 12}, {62, 1, 0, 8}};
  return job;
}

absl::StatusOr<std::vector<uint8_t>> Pack(const PackJob& job, DType storage, FragmentOrder order,
                                          int threads) {
  std::vector<uint8_t> memory(job.offset + PackedBytes(job, storage) + 32, 0xee);
  PackOptions options{storage, order, threads, nullptr};
  int64_t last = 0, total = -1;
  options.progress = [&](int64_t done, int64_t all) {
    CHECK(done > last);
    last = done;
    total = all;
  };
  absl::Status status = PackWeights(
      *Weights(), {job}, options, [&](int tensor, int64_t offset, const void* data, int64_t bytes) {
        EVT_CHECK(tensor == 4 && offset >= job.offset);
        EVT_CHECK(offset + bytes <= static_cast<int64_t>(memory.size()) - 32);
        std::memcpy(memory.data() + offset, data, bytes);
        return absl::OkStatus();
      });
  if (!status.ok()) return status;
  CHECK(last == total);
  CHECK(total == PackedBytes(job, storage));
  return memory;
}

// What the job's rows should be, read one row at a time.
std::vector<uint8_t> ExpectedRows(const PackJob& job, DType storage) {
  const size_t row_bytes = job.columns * DTypeSize(storage);
  std::vector<uint8_t> rows(job.rows * row_bytes, 0);
  const auto source = Weights();
  for (const RowSpan& span : job.spans) {
    for (int64_t r = 0; r < span.rows; ++r) {
      REQUIRE(source
                  ->Read(job.sources[span.source], (span.source_row + r) * job.columns, job.columns,
                         storage, rows.data() + (span.packed_row + r) * row_bytes)
                  .ok());
    }
  }
  return rows;
}

TEST_CASE("unpacking a packed matrix gives its rows back, bit for bit") {
  for (DType storage : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const auto& [order, height] : std::vector<std::pair<FragmentOrder, int>>{
             {&PlainOrder, 32}, {&ShuffledOrder, 32}, {&ShuffledOrder, 16}, {&PlainOrder, 48}}) {
      PackJob job = ExampleJob();
      job.height = height;
      const auto memory = Pack(job, storage, order, 3);
      REQUIRE(memory.ok());
      const std::vector<uint8_t> rows =
          UnpackTiles(memory->data() + job.offset, job.rows, job.columns, job.height,
                      static_cast<int>(DTypeSize(storage)), order);
      CHECK(rows == ExpectedRows(job, storage));
      CHECK((*memory)[job.offset - 1] == 0xee);
      CHECK((*memory)[memory->size() - 32] == 0xee);
    }
  }
}

TEST_CASE("packed bytes do not depend on the number of threads") {
  const auto one = Pack(ExampleJob(), DType::kBF16, &ShuffledOrder, 1);
  const auto many = Pack(ExampleJob(), DType::kBF16, &ShuffledOrder, 7);
  REQUIRE((one.ok() && many.ok()));
  CHECK(*one == *many);
}

TEST_CASE("columns beyond K are zeros in every fragment order") {
  const PackJob job =
      ExampleJob();  // K = 192 is 12 blocks of 16; padded to 8 segments of 2: 16 blocks
  const auto memory = Pack(job, DType::kF32, &ShuffledOrder, 2);
  REQUIRE(memory.ok());
  const float* tiles = reinterpret_cast<const float*>(memory->data() + job.offset);
  REQUIRE(PackedTile(kTileRows, 192) == kTileRows * 256);
  for (int row = 0; row < job.rows; ++row) {
    for (int k = 192; k < 256; ++k) {
      const int64_t at =
          PackedFragment(kTileRows, 192, row, k / 16 * 16) + ShuffledOrder(row % 16, k % 16);
      REQUIRE(tiles[at] == 0.0f);
    }
  }
}

TEST_CASE("plain rows and vectors are copied in the order of their spans") {
  PackJob job;
  job.tensor = 4;
  job.rows = 64;
  job.columns = 1;
  job.sources = {"model.layers.1.input_layernorm.weight"};
  job.spans = {{8, 0, 100, 20}, {40, 0, 0, 24}};
  const auto memory = Pack(job, DType::kF32, &PlainOrder, 2);
  REQUIRE(memory.ok());
  const std::vector<uint8_t> rows = ExpectedRows(job, DType::kF32);
  CHECK(std::memcmp(memory->data(), rows.data(), rows.size()) == 0);
}

TEST_CASE("packing stops at a tensor that is not there and names it") {
  PackJob job = ExampleJob();
  job.sources[1] = "model.layers.9.mlp.up_proj.weight";
  const auto memory = Pack(job, DType::kF32, &PlainOrder, 2);
  REQUIRE_FALSE(memory.ok());
  CHECK(memory.status().message().find("model.layers.9.mlp.up_proj.weight") !=
        absl::string_view::npos);
}

TEST_CASE("a fragment order that is no permutation is refused") {
  CHECK_FALSE(Pack(ExampleJob(), DType::kF32, &BrokenOrder, 1).ok());
}

}  // namespace
}  // namespace eventide
