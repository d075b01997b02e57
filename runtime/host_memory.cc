#include "runtime/host_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_format.h"
#include "device/loop.h"
#include "runtime/abort.h"
#include "runtime/timeline.h"

namespace eventide {
namespace {

template <class T>
T* At(uint64_t address) {
  return reinterpret_cast<T*>(address);
}

int64_t BytesOf(int pages_name) {
  const int64_t pages = sysconf(pages_name), size = sysconf(_SC_PAGE_SIZE);
  return pages > 0 && size > 0 ? pages * size : int64_t{4} << 30;
}

}  // namespace

int64_t MachineMemoryBytes() { return BytesOf(_SC_PHYS_PAGES); }
int64_t FreeMemoryBytes() { return BytesOf(_SC_AVPHYS_PAGES); }

absl::StatusOr<HostBlock> HostBlock::Allocate(int64_t bytes) {
  HostBlock block;
  if (bytes < 0) return absl::InvalidArgumentError("a buffer of negative size");
  if (bytes == 0) return block;
  void* data = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrFormat("no %d MiB of memory to be had", bytes >> 20));
  }
  block.data_ = data;
  block.bytes_ = bytes;
  return block;
}

HostBlock::~HostBlock() {
  if (data_ != nullptr) ::munmap(data_, static_cast<size_t>(bytes_));
}

absl::Status HostExecutor::Setup(Program program, const ExecutorOptions& options,
                                 const MachineShape& machine) {
  if (options.timeout_ns == 0) return absl::InvalidArgumentError("the step timeout must not be 0");
  program_ = std::make_unique<Program>(std::move(program));
  workers_ = machine.workers;
  timeout_ns_ = options.timeout_ns;
  RETURN_IF_ERROR(InPhase(options.phases, "kv_alloc", [&] { return Allocate(options); }));
  const PhaseSpan span(options.phases, "generate");
  ASSIGN_OR_RETURN(const PolicyPlan policies, Plan(*program_, machine, options.policy));
  ASSIGN_OR_RETURN(nodes_, BuildNodes(*program_, addresses_, policies.policy));
  return absl::OkStatus();
}

absl::Status HostExecutor::Allocate(const ExecutorOptions& options) {
  const size_t tensors = program_->tensors.size();
  std::vector<bool> placed(tensors);
  addresses_.assign(tensors, 0);
  for (const PlacedTensor& place : options.placed) {
    RETURN_IF_ERROR(CheckPlaced(*program_, place));
    placed[place.tensor] = true;
    addresses_[place.tensor] = reinterpret_cast<uint64_t>(place.data);
  }
  ASSIGN_OR_RETURN(plan_, PlanMemory(*program_, placed));
  // The rest may be larger than the machine, since much of it is never touched; weights are, all of them.
  if (plan_.bytes[static_cast<size_t>(TensorRole::kWeight)] > MachineMemoryBytes()) {
    return TooLittleMemory(*program_, plan_, "this machine", FreeMemoryBytes());
  }
  std::array<uint64_t, kArenas> base = {};
  for (int arena = 0; arena < kArenas; ++arena) {
    const absl::StatusOr<Buffer> buffer = AllocateBuffer(plan_.bytes[arena]);
    if (absl::IsResourceExhausted(buffer.status())) {
      return TooLittleMemory(*program_, plan_, "this machine", FreeMemoryBytes());
    }
    RETURN_IF_ERROR(buffer.status());
    base[arena] = buffer->address;
  }
  for (size_t i = 0; i < tensors; ++i) {
    const TensorPlace& place = plan_.tensors[i];
    if (!placed[i]) addresses_[i] = base[place.arena] + static_cast<uint64_t>(place.offset);
  }
  // A program without events still has a counter, so that no pointer is null.
  const int64_t bank = std::max<int64_t>(program_->BankBytes(), kEventStrideBytes);
  ASSIGN_OR_RETURN(const Buffer counters, AllocateBuffer(2 * bank));
  ASSIGN_OR_RETURN(const Buffer abort, AllocateBuffer(AbortBytes(workers_)));
  ASSIGN_OR_RETURN(const Buffer progress, AllocateBuffer(int64_t{workers_} * kEventStrideBytes));
  ASSIGN_OR_RETURN(const Buffer published, AllocateBuffer(std::max<int64_t>(tensors, 1) * 8));
  record_.counters = counters.address;
  record_.bank_bytes = static_cast<uint64_t>(bank);
  record_.abort = abort.address;
  record_.progress = progress.address;
  record_.published = published.address;
  std::copy(addresses_.begin(), addresses_.end(), At<uint64_t>(published.address));
  if (options.timeline_tasks > 0) {
    const TimelineHeader header = TimelineHeaderFor(options.timeline_tasks, workers_);
    ASSIGN_OR_RETURN(timeline_, AllocateBuffer(static_cast<int64_t>(TimelineBytes(
                                    header.capacity, static_cast<uint32_t>(workers_)))));
    *At<TimelineHeader>(timeline_.address) = header;
    record_.timeline = timeline_.address;
  }
  return absl::OkStatus();
}

Buffer HostExecutor::TensorBuffer(int tensor) const {
  EVT_CHECK(tensor >= 0 && tensor < static_cast<int>(addresses_.size()));
  return {addresses_[tensor], plan_.tensors[tensor].bytes};
}

absl::StatusOr<Buffer> HostExecutor::AllocateBuffer(int64_t bytes) {
  ASSIGN_OR_RETURN(HostBlock block, HostBlock::Allocate(bytes));
  const Buffer buffer{block.address(), bytes};
  blocks_.push_back(std::move(block));
  return buffer;
}

absl::Status HostExecutor::Write(const Buffer& to, int64_t offset, const void* data,
                                 int64_t bytes) {
  RETURN_IF_ERROR(CheckRange(to, offset, bytes));
  if (bytes > 0) std::memcpy(At<char>(to.address) + offset, data, static_cast<size_t>(bytes));
  return absl::OkStatus();
}

absl::Status HostExecutor::Read(const Buffer& from, int64_t offset, void* data, int64_t bytes) {
  RETURN_IF_ERROR(CheckRange(from, offset, bytes));
  if (bytes > 0) std::memcpy(data, At<char>(from.address) + offset, static_cast<size_t>(bytes));
  return absl::OkStatus();
}

absl::Status HostExecutor::Fill(const Buffer& to, int64_t offset, uint8_t value, int64_t bytes) {
  RETURN_IF_ERROR(CheckRange(to, offset, bytes));
  if (bytes > 0) std::memset(At<char>(to.address) + offset, value, static_cast<size_t>(bytes));
  return absl::OkStatus();
}

absl::Status HostExecutor::SumRows(StepHeader& header) const {
  const Row* rows = At<const Row>(header.rows_ptr);
  const SlotState* slots = At<const SlotState>(header.slot_state_ptr);
  for (size_t i = 0; i < program_->symbols.size(); ++i) {
    const SymbolDecl& symbol = program_->symbols[i];
    if (header.symbols[i] != kSumOfRows || symbol.min < 0) continue;
    int64_t sum = 0;
    for (uint32_t r = 0; r < header.rows; ++r) {
      if (rows[r].query_length == kDeviceKnows && slots == nullptr) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "step: row %d leaves its length to the device, but there are no slot states", r));
      }
      sum += static_cast<uint32_t>(QueryLength(rows[r], slots, header.step));
    }
    if (sum < symbol.min || sum > symbol.max) {
      return absl::InvalidArgumentError(
          absl::StrFormat("step: the rows' lengths add up to %s = %d, outside [%d, %d]",
                          symbol.name, sum, symbol.min, symbol.max));
    }
    header.symbols[i] = static_cast<int32_t>(sum);
  }
  return absl::OkStatus();
}

// Fills in what is the executor's; the view is of `header`.
absl::Status HostExecutor::Prepare(StepHeader* header, StepView* view) {
  header->abi = kAbiVersion;
  header->symbol_count = static_cast<uint32_t>(program_->symbols.size());
  header->workers = static_cast<uint32_t>(workers_);
  header->timeout_ns = timeout_ns_;
  header->step = step_;
  header->bank = static_cast<uint32_t>(step_ & 1);
  RETURN_IF_ERROR(CheckStep(*program_, *header));
  // As on the device, the header keeps kSumOfRows; what is summed goes to the view.
  StepHeader resolved = *header;
  RETURN_IF_ERROR(SumRows(resolved));
  view->header = header;
  std::copy(std::begin(resolved.symbols), std::end(resolved.symbols), view->symbols);
  EvaluateDims(*view);
  ++step_;
  return absl::OkStatus();
}

absl::Status HostExecutor::SubmitAll(std::span<const StepHeader> headers) {
  if (static_cast<int>(outcomes_.size()) >= MaxInFlight()) {
    return absl::FailedPreconditionError(
        "two steps are in flight: Wait for one before the next Submit");
  }
  Ran all;
  for (size_t i = 0; i < headers.size() && all.status.ok(); ++i) {
    StepHeader header = headers[i];
    StepView view = {};
    all.status = Prepare(&header, &view);
    if (!all.status.ok() && i == 0) return all.status;
    if (!all.status.ok()) break;
    using Ms = std::chrono::duration<double, std::milli>;
    const auto start = std::chrono::steady_clock::now();
    if (i == 0 && ended_) all.gap_ms = Ms(start - *ended_).count();
    const absl::Status ran = RunWorkers(header, view);
    ended_ = std::chrono::steady_clock::now();
    all.ms += Ms(*ended_ - start).count();
    const absl::Status outcome = Outcome();
    all.status = outcome.ok() ? ran : outcome;
    if (all.status.ok()) continue;
    ended_.reset();
    std::memset(At<void>(record_.counters), 0, 2 * record_.bank_bytes);
    std::memset(At<void>(record_.abort), 0, AbortBytes(static_cast<uint64_t>(workers_)));
  }
  outcomes_.push_back(all);
  return absl::OkStatus();
}

absl::Status HostExecutor::Outcome() {
  if (*AbortWord(record_) == 0) return absl::OkStatus();
  return DescribeAbort(*program_, {&AbortRecordOf(record_, 0, 0),
                                   static_cast<size_t>(workers_) * kRoles});
}

absl::Status HostExecutor::Wait() {
  if (outcomes_.empty()) return absl::FailedPreconditionError("Wait without a submitted step");
  last_ = outcomes_.front();
  outcomes_.erase(outcomes_.begin());
  return last_.status;
}

void HostExecutor::ClearSlice(uint32_t used_bank, int worker) const {
  const uint64_t elements = record_.bank_bytes / kEventStrideBytes;
  const uint64_t count = static_cast<uint64_t>(workers_), index = static_cast<uint64_t>(worker);
  const uint64_t begin = elements * index / count, end = elements * (index + 1) / count;
  char* bank = At<char>(record_.counters + (1 - used_bank) * record_.bank_bytes);
  std::memset(bank + begin * kEventStrideBytes, 0, (end - begin) * kEventStrideBytes);
}

}  // namespace eventide
