#include "models/pack.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <thread>

#include "absl/strings/str_cat.h"
#include "core/status.h"
#include "device/layout.h"

namespace eventide {
namespace {

// A piece of a job that one thread does at once.
struct Unit {
  const PackJob* job;
  int64_t first, rows;
};

// Reads rows [first, first + rows) of a job's packed row order, row-major, zero where no span is.
absl::Status ReadRows(const WeightSource& source, const PackJob& job, int64_t first, int64_t rows,
                      DType type, uint8_t* out) {
  const int64_t row_bytes = int64_t{job.columns} * DTypeSize(type);
  std::memset(out, 0, rows * row_bytes);
  auto span =
      std::upper_bound(job.spans.begin(), job.spans.end(), first,
                       [](int64_t row, const RowSpan& s) { return row < s.packed_row + s.rows; });
  for (; span != job.spans.end() && span->packed_row < first + rows; ++span) {
    const int64_t low = std::max(first, span->packed_row);
    const int64_t high = std::min(first + rows, span->packed_row + span->rows);
    const int64_t from = span->source_row + (low - span->packed_row);
    RETURN_IF_ERROR(source.Read(job.sources[span->source], from * job.columns,
                                (high - low) * job.columns, type, out + (low - first) * row_bytes));
  }
  return absl::OkStatus();
}

// One tile from row-major rows. `tile` is zero where K is padded.
template <class T>
void PackTile(const T* rows, int height, int columns, const FragmentGather& gather, T* tile) {
  const int fragments = static_cast<int>(PackedTile(height, columns) / kFragment);
  for (int f = 0; f < fragments; ++f) {
    const FragmentPlace place = PlaceOfFragment(height, columns, f);
    const T* from = rows + int64_t{place.row} * columns + place.index;
    T* to = tile + int64_t{f} * kFragment;
    if (place.index + 16 <= columns) {
      for (int i = 0; i < kFragment; ++i) {
        to[i] = from[(gather[i] >> 4) * int64_t{columns} + (gather[i] & 15)];
      }
      continue;
    }
    for (int i = 0; i < kFragment; ++i) {
      const int k = gather[i] & 15;
      if (place.index + k < columns) to[i] = from[(gather[i] >> 4) * int64_t{columns} + k];
    }
  }
}

class Packer {
 public:
  Packer(const WeightSource& source, const PackOptions& options, const WeightSink& sink,
         const FragmentGather& gather, std::vector<Unit> units)
      : source_(source), options_(options), sink_(sink), gather_(gather), units_(std::move(units)) {
    for (const Unit& unit : units_) total_ += PackedBytes(*unit.job, unit.rows, options_.storage);
  }

  absl::Status Run() {
    const int count = std::clamp<int>(options_.threads, 1, 256);
    std::vector<std::thread> threads;
    for (int i = 1; i < count; ++i) threads.emplace_back([this] { Work(nullptr); });
    Work(options_.phases);
    for (std::thread& thread : threads) thread.join();
    return error_;
  }

 private:
  // `phases` belong to the calling thread.
  void Work(PhaseLog* phases) {
    std::vector<uint8_t> rows, packed;
    for (;;) {
      const size_t index = next_.fetch_add(1, std::memory_order_relaxed);
      if (index >= units_.size() || failed_.load(std::memory_order_relaxed)) return;
      const absl::Status status = Do(units_[index], rows, packed, phases);
      std::lock_guard<std::mutex> lock(mutex_);
      if (!status.ok()) {
        failed_.store(true, std::memory_order_relaxed);
        error_.Update(status);
        return;
      }
      done_ += PackedBytes(*units_[index].job, units_[index].rows, options_.storage);
      if (options_.progress) options_.progress(done_, total_);
    }
  }

  absl::Status Do(const Unit& unit, std::vector<uint8_t>& rows, std::vector<uint8_t>& packed,
                  PhaseLog* phases) {
    const PackJob& job = *unit.job;
    const DType type = options_.storage;
    const int64_t bytes = PackedBytes(job, unit.rows, type);
    const int64_t offset = job.offset + PackedBytes(job, unit.first, type);
    rows.resize(unit.rows * job.columns * DTypeSize(type));
    const bool drawn = !job.sources.empty() && source_.Drawn(job.sources[0]).has_value();
    RETURN_IF_ERROR(InPhase(drawn ? nullptr : phases, "weights_read", [&] {
      return ReadRows(source_, job, unit.first, unit.rows, type, rows.data());
    }));
    if (job.form != PackForm::kTiles) return sink_(job.tensor, offset, rows.data(), bytes);
    packed.assign(bytes, 0);
    if (DTypeSize(type) == 2) {
      PackTile(reinterpret_cast<const uint16_t*>(rows.data()), job.height, job.columns, gather_,
               reinterpret_cast<uint16_t*>(packed.data()));
    } else {
      PackTile(reinterpret_cast<const uint32_t*>(rows.data()), job.height, job.columns, gather_,
               reinterpret_cast<uint32_t*>(packed.data()));
    }
    return sink_(job.tensor, offset, packed.data(), bytes);
  }

  const WeightSource& source_;
  const PackOptions& options_;
  const WeightSink& sink_;
  const FragmentGather& gather_;
  const std::vector<Unit> units_;
  int64_t total_ = 0;
  std::atomic<size_t> next_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;  // guards what follows, and the calls of `progress`
  int64_t done_ = 0;
  absl::Status error_;
};

}  // namespace

absl::StatusOr<FragmentGather> InvertOrder(FragmentOrder order) {
  FragmentGather gather = {};
  std::array<bool, kFragment> used = {};
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < 16; ++k) {
      const int32_t at = order(row, k);
      if (at < 0 || at >= kFragment || used[at]) {
        return absl::InternalError("packing: the fragment order is not a permutation of 0 ... 255");
      }
      used[at] = true;
      gather[at] = static_cast<uint8_t>(row * 16 + k);
    }
  }
  return gather;
}

int64_t UnitRows(const PackJob& job) {
  if (job.form == PackForm::kTiles) return job.height;
  return std::max<int64_t>(1, (int64_t{1} << 16) / job.columns);
}

int64_t PackedBytes(const PackJob& job, DType storage) {
  return PackedBytes(job, job.rows, storage);
}

int64_t PackedBytes(const PackJob& job, int64_t rows, DType storage) {
  if (job.form != PackForm::kTiles) return rows * job.columns * DTypeSize(storage);
  return rows / job.height * PackedTile(job.height, job.columns) * DTypeSize(storage);
}

absl::Status PackWeights(const WeightSource& source, absl::Span<const PackJob> jobs,
                         const PackOptions& options, const WeightSink& sink) {
  EVT_CHECK(IsWeightDType(options.storage) && options.order != nullptr);
  ASSIGN_OR_RETURN(const FragmentGather gather, InvertOrder(options.order));
  std::vector<Unit> units;
  for (const PackJob& job : jobs) {
    EVT_CHECK(job.columns > 0 && job.height > 0 && job.height % 16 == 0);
    EVT_CHECK(job.form != PackForm::kTiles || job.rows % job.height == 0);
    const int64_t step = UnitRows(job);
    for (int64_t first = 0; first < job.rows; first += step) {
      units.push_back({&job, first, std::min(step, job.rows - first)});
    }
  }
  return Packer(source, options, sink, gather, std::move(units)).Run();
}

std::vector<uint8_t> UnpackTiles(const uint8_t* packed, int64_t rows, int columns, int height,
                                 int element_bytes, FragmentOrder order) {
  std::vector<uint8_t> out(rows * columns * element_bytes);
  for (int64_t row = 0; row < rows; ++row) {
    for (int k = 0; k < columns; ++k) {
      const int64_t at = PackedFragment(height, columns, static_cast<i32>(row), k / 16 * 16) +
                         order(static_cast<int32_t>(row % 16), k % 16);
      std::memcpy(out.data() + (row * columns + k) * element_bytes, packed + at * element_bytes,
                  element_bytes);
    }
  }
  return out;
}

}  // namespace eventide
