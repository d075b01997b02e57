#include "serve/device_pack.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>

#include "absl/strings/str_cat.h"

namespace eventide {
namespace {

constexpr int kSlots = 4;         // of the packer: two are filled while two are copied and packed
constexpr size_t kFillAhead = 2;  // batches
constexpr int64_t kLeastSlotBytes = int64_t{1} << 18, kMostSlotBytes = int64_t{32} << 20;
constexpr int64_t kAlignment = 256;                 // of what a slot holds
constexpr int64_t kReadElements = int64_t{128} << 10;  // that a thread reads at once

int64_t Aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

u32 VariantOf(DType type) {
  if (type == DType::kBF16) return Storage<BF16>::kVariant;
  return type == DType::kF16 ? Storage<F16>::kVariant : Storage<float>::kVariant;
}

// Elements [first, first + count) of a tensor, wanted at `to`.
struct ReadTask {
  const std::string* tensor;
  int64_t first, count;
  uint8_t* to;
};

// What fills one slot.
struct Batch {
  std::vector<PackOrder> orders;
  std::vector<ReadTask> reads;
  int64_t bytes = 0;   // of the slot
  int64_t packed = 0;  // bytes of the tensors
};

// Cuts jobs into batches that fit a slot.
class Batches {
 public:
  Batches(const WeightSource& source, absl::Span<const PackJob> jobs, DType storage,
          const FragmentGather& gather, const TensorAddress& address)
      : source_(source), jobs_(jobs), storage_(storage), gather_(gather), address_(address) {}

  // Bytes of a slot in which every part of every job fits.
  absl::StatusOr<int64_t> SlotBytes() {
    int64_t least = 0, all = 0, packed = 0;
    for (const PackJob& job : jobs_) {
      RETURN_IF_ERROR(CheckJob(job));
      RETURN_IF_ERROR(Enter(job));
      const int64_t step = std::min(UnitRows(job), job.rows);
      for (int64_t first = 0; first < job.rows; first += step) {
        least = std::max(least, Cost(job, first, std::min(first + step, job.rows)));
      }
      all += Cost(job, 0, job.rows);
      packed += PackedBytes(job, storage_);
    }
    job_ = 0;
    const int64_t table = Aligned(kFragment);
    // Four slots of a fortieth each: a tenth of the tensors.
    const int64_t wanted = std::clamp(packed / (10 * kSlots), kLeastSlotBytes, kMostSlotBytes);
    return table + std::max(least, std::min(all, wanted));
  }

  // Fills the next batch for a slot of `capacity` bytes at `host`, `device`; false when there is none.
  absl::StatusOr<bool> Next(uint8_t* host, uint64_t device, int64_t capacity, Batch* batch) {
    if (job_ == jobs_.size()) return false;
    std::memcpy(host, gather_.data(), gather_.size());
    batch->bytes = Aligned(kFragment);
    for (; job_ < jobs_.size(); ++job_, first_ = 0) {
      const PackJob& job = jobs_[job_];
      if (first_ == 0) RETURN_IF_ERROR(Enter(job));
      const int64_t end = LargestEnd(job, capacity - batch->bytes);
      if (end > first_) RETURN_IF_ERROR(Add(job, end, host, device, batch));
      first_ = end;
      if (first_ < job.rows) break;  // the next slot has room
    }
    return true;
  }

 private:
  struct Source {
    TensorInfo info;
    std::optional<DrawnTensor> drawn;
  };

  static absl::Status CheckJob(const PackJob& job) {
    EVT_CHECK(job.columns > 0 && job.rows > 0 && job.rows <= INT32_MAX);
    if (job.form != PackForm::kTiles) return absl::OkStatus();
    EVT_CHECK(job.height > 0 && job.height % 16 == 0 && job.rows % job.height == 0);
    if (job.height <= kPackHeight) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("tiles of ", job.height, " rows; a device packs up to ",
                                                   kPackHeight));
  }

  // Looks a job's sources up.
  absl::Status Enter(const PackJob& job) {
    sources_.clear();
    for (const std::string& name : job.sources) {
      ASSIGN_OR_RETURN(TensorInfo info, source_.Info(name));
      sources_.push_back({std::move(info), source_.Drawn(name)});
    }
    return absl::OkStatus();
  }

  // Calls visit(span, low, high) with the packed rows of [first, end) that each span has a share of.
  template <class F>
  static absl::Status ForSpans(const PackJob& job, int64_t first, int64_t end, const F& visit) {
    auto span =
        std::upper_bound(job.spans.begin(), job.spans.end(), first,
                         [](int64_t row, const RowSpan& s) { return row < s.packed_row + s.rows; });
    for (; span != job.spans.end() && span->packed_row < end; ++span) {
      const int64_t low = std::max(first, span->packed_row);
      const int64_t high = std::min(end, span->packed_row + span->rows);
      if (low < high) RETURN_IF_ERROR(visit(*span, low, high));
    }
    return absl::OkStatus();
  }

  static int SpanCount(const PackJob& job, int64_t first, int64_t end) {
    int count = 0;
    (void)ForSpans(job, first, end, [&](const RowSpan&, int64_t, int64_t) {
      ++count;
      return absl::OkStatus();
    });
    return count;
  }

  // Bytes that packed rows [first, end) take in a slot.
  int64_t Cost(const PackJob& job, int64_t first, int64_t end) const {
    int64_t elements = 0;
    (void)ForSpans(job, first, end, [&](const RowSpan& span, int64_t low, int64_t high) {
      if (!sources_[span.source].drawn) elements += (high - low) * job.columns;
      return absl::OkStatus();
    });
    return Aligned(SpanCount(job, first, end) * int64_t{sizeof(PackSpan)}) +
           Aligned(elements * static_cast<int64_t>(DTypeSize(storage_)));
  }

  // Rows from first_ on to where they still fit `room` bytes; by halving, since costs take walks.
  int64_t LargestEnd(const PackJob& job, int64_t room) const {
    const int64_t step = UnitRows(job);
    const auto end_of = [&](int64_t steps) { return std::min(job.rows, first_ + steps * step); };
    int64_t fits = 0, least_not = (job.rows - first_ + step - 1) / step + 1;
    while (least_not - fits > 1) {
      const int64_t middle = fits + (least_not - fits) / 2;
      (Cost(job, first_, end_of(middle)) <= room ? fits : least_not) = middle;
    }
    return end_of(fits);
  }

  // The order for rows [first_, end), its spans and the reads it depends on.
  absl::Status Add(const PackJob& job, int64_t end, uint8_t* host, uint64_t device, Batch* batch) {
    const int64_t element_bytes = static_cast<int64_t>(DTypeSize(storage_));
    const int64_t before = PackedBytes(job, first_, storage_);
    PackOrder order = {};
    order.to = address_(job.tensor) + static_cast<uint64_t>(job.offset + before);
    order.spans = device + static_cast<uint64_t>(batch->bytes);
    order.fragment = device;
    order.span_count = SpanCount(job, first_, end);
    order.rows = static_cast<i32>(end - first_);
    order.columns = job.columns;
    order.height = job.form == PackForm::kTiles ? job.height : 0;
    order.type = VariantOf(storage_);
    batch->orders.push_back(order);
    batch->packed += PackedBytes(job, end, storage_) - before;

    PackSpan* span = reinterpret_cast<PackSpan*>(host + batch->bytes);
    batch->bytes += Aligned(order.span_count * int64_t{sizeof(PackSpan)});
    RETURN_IF_ERROR(ForSpans(job, first_, end, [&](const RowSpan& s, int64_t low, int64_t high) {
      const Source& from = sources_[s.source];
      const int64_t element = (s.source_row + (low - s.packed_row)) * job.columns;
      const int64_t count = (high - low) * job.columns;
      RETURN_IF_ERROR(CheckRead(from.info, element, count, storage_));
      *span = {};
      span->row = static_cast<i32>(low - first_);
      span->rows = static_cast<i32>(high - low);
      if (from.drawn) {
        span->at = static_cast<u64>(element);
        span->key = from.drawn->key;
        span->from = from.drawn->norm ? kPackDrawnNorm : kPackDrawn;
        span->drawn = VariantOf(from.info.dtype);
      } else {
        span->at = device + static_cast<u64>(batch->bytes);
        span->from = kPackStaged;
        for (int64_t i = 0; i < count; i += kReadElements) {
          batch->reads.push_back({&job.sources[s.source], element + i,
                                  std::min(count - i, kReadElements),
                                  host + batch->bytes + i * element_bytes});
        }
        batch->bytes += count * element_bytes;
      }
      ++span;
      return absl::OkStatus();
    }));
    batch->bytes = Aligned(batch->bytes);
    return absl::OkStatus();
  }

  const WeightSource& source_;
  const absl::Span<const PackJob> jobs_;
  const DType storage_;
  const FragmentGather& gather_;
  const TensorAddress& address_;
  size_t job_ = 0;     // the next one's, of which
  int64_t first_ = 0;  // rows from here on are left
  std::vector<Source> sources_;  // of that job
};

// Threads that read from a source, batch after batch. Without anything to read there are none.
class Readers {
 public:
  Readers(const WeightSource& source, DType storage, int threads)
      : source_(source), storage_(storage), count_(std::clamp(threads, 1, 256)) {}
  ~Readers() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ended_ = true;
    }
    work_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  // Another batch, behind the others.
  void Add(const std::vector<ReadTask>& reads) {
    if (!reads.empty()) {
      while (static_cast<int>(threads_.size()) < count_) threads_.emplace_back([this] { Work(); });
    }
    {
      std::lock_guard<std::mutex> lock(mutex_);
      for (const ReadTask& read : reads) tasks_.push_back({read, added_});
      left_.push_back(reads.size());
      ++added_;
    }
    work_.notify_all();
  }

  // Waits until the oldest batch that nobody has waited for has been read.
  absl::Status Await() {
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, [&] { return left_.front() == 0 || !error_.ok(); });
    left_.pop_front();
    ++awaited_;
    return error_;
  }

 private:
  struct Task {
    ReadTask read;
    int64_t batch;
  };

  void Work() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      work_.wait(lock, [&] { return ended_ || !tasks_.empty(); });
      if (ended_) return;  // what is left to read, nobody waits for
      const Task task = tasks_.front();
      tasks_.pop_front();
      lock.unlock();
      const ReadTask& read = task.read;
      const absl::Status status =
          source_.Read(*read.tensor, read.first, read.count, storage_, read.to);
      lock.lock();
      error_.Update(status);
      // After an error batches are taken off before they are complete.
      if (task.batch < awaited_) continue;
      if (--left_[static_cast<size_t>(task.batch - awaited_)] == 0 || !status.ok()) done_.notify_one();
    }
  }

  const WeightSource& source_;
  const DType storage_;
  const int count_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;  // guards all that follows
  std::condition_variable work_, done_;
  std::deque<Task> tasks_;
  std::deque<size_t> left_;  // reads of each batch from awaited_ on
  int64_t added_ = 0, awaited_ = 0;
  bool ended_ = false;
  absl::Status error_;
};

// The batches one after the other.
absl::Status Run(Batches& batches, int64_t slot_bytes, int64_t total, const PackOptions& options,
                 Readers& readers, DevicePacker& packer) {
  std::deque<Batch> filling;
  int64_t opened = 0, submitted = 0, done = 0;
  bool more = true;
  for (;;) {
    while (more && filling.size() < kFillAhead) {
      const int slot = static_cast<int>(opened % kSlots);
      ASSIGN_OR_RETURN(uint8_t* const host, packer.Host(slot));
      Batch batch;
      ASSIGN_OR_RETURN(more, batches.Next(host, packer.Device(slot), slot_bytes, &batch));
      if (!more) break;
      readers.Add(batch.reads);
      filling.push_back(std::move(batch));
      ++opened;
    }
    if (filling.empty()) return absl::OkStatus();
    const Batch& batch = filling.front();
    RETURN_IF_ERROR(InPhase(batch.reads.empty() ? nullptr : options.phases, "weights_read",
                            [&] { return readers.Await(); }));
    RETURN_IF_ERROR(packer.Submit(static_cast<int>(submitted % kSlots), batch.bytes, batch.orders));
    done += batch.packed;
    if (options.progress) options.progress(done, total);
    filling.pop_front();
    ++submitted;
  }
}

}  // namespace

absl::Status PackOnDevice(const WeightSource& source, absl::Span<const PackJob> jobs,
                          const PackOptions& options, const TensorAddress& address,
                          DevicePacker& packer) {
  EVT_CHECK(IsWeightDType(options.storage) && options.order != nullptr);
  if (DTypeSize(options.storage) != 2) {
    return absl::InvalidArgumentError(absl::StrCat("weights of type ", DTypeName(options.storage),
                                                   " are not packed on a device"));
  }
  ASSIGN_OR_RETURN(const FragmentGather gather, InvertOrder(options.order));
  int64_t total = 0;
  for (const PackJob& job : jobs) total += PackedBytes(job, options.storage);
  Batches batches(source, jobs, options.storage, gather, address);
  ASSIGN_OR_RETURN(const int64_t slot_bytes, batches.SlotBytes());
  RETURN_IF_ERROR(packer.Open(kSlots, slot_bytes));
  {
    // Ended, and no longer writing to slots, before those are given back.
    Readers readers(source, options.storage, options.threads);
    RETURN_IF_ERROR(Run(batches, slot_bytes, total, options, readers, packer));
  }
  return packer.Finish();
}

}  // namespace eventide
