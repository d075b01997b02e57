#include "runtime/cuda_executor.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_format.h"
#include "jit/codegen.h"
#include "jit/driver.h"
#include "jit/page_floors.h"
#include "runtime/cuda_abort.h"
#include "runtime/cuda_checks.h"
#include "runtime/cuda_device.h"
#include "runtime/cuda_flights.h"
#include "runtime/cuda_memory.h"
#include "runtime/cuda_packer.h"
#include "runtime/memory.h"
#include "runtime/tensor_maps.h"
#include "runtime/timeline.h"
#include "schedulers/scheduler.h"

namespace eventide {
namespace {

using Clock = std::chrono::steady_clock;
// A kernel ends stuck steps itself; if even that does not happen, the GPU is lost to this process.
constexpr std::chrono::minutes kDeviceSilence{10};
constexpr int kNotPagesBytes = kWorkerStateBytes + kScratchBytes + kKeptBytes;

class CudaExecutorImpl : public CudaExecutor {
 public:
  ~CudaExecutorImpl() override {
    if (gpu_ == nullptr || gpu_->context == nullptr) return;
    driver_ = gpu_->driver;
    driver_->CtxSetCurrent(gpu_->context);
    if (gpu_->stream != nullptr) driver_->StreamSynchronize(gpu_->stream);
    abort_.reset();
    memory_.reset();
    flights_.reset();
    if (module_ != nullptr) driver_->ModuleUnload(module_);
  }

  absl::Status Start(Program program, const CudaExecutorOptions& options) {
    if (options.timeout_ns == 0)
      return absl::InvalidArgumentError("the step timeout must not be 0");
    program_ = std::make_unique<Program>(std::move(program));
    timeout_ns_ = options.timeout_ns;
    RETURN_IF_ERROR(InPhase(options.phases, "device", [&] { return OpenDevice(options); }));
    RETURN_IF_ERROR(CheckMemoryFits(*driver_, *program_, report_.gpu));
    RETURN_IF_ERROR(InPhase(options.phases, "nvrtc", [&] { return CheckCompilerFits(*driver_); }));
    RETURN_IF_ERROR(LoadKernel(options));
    const PhaseSpan span(options.phases, "kv_alloc");
    RETURN_IF_ERROR(Allocate(options));
    return driver_->Check(driver_->StreamSynchronize(gpu_->stream), "preparing memory");
  }

  const Program& program() const override { return *program_; }
  int workers() const override { return workers_; }
  const CudaReport& report() const override { return report_; }
  std::shared_ptr<CudaDevice> device() const override { return gpu_; }
  int MaxInFlight() const override { return CudaFlights::kMost; }
  double LastStepMs() const override { return flights_->step_ms(); }
  double LastGapMs() const override { return flights_->gap_ms(); }
  Buffer TimelineBuffer() const override { return timeline_; }

  Buffer TensorBuffer(int tensor) const override {
    EVT_CHECK(tensor >= 0 && tensor < static_cast<int>(addresses_.size()));
    return {addresses_[tensor], plan_.tensors[tensor].bytes};
  }
  absl::StatusOr<Buffer> AllocateBuffer(int64_t bytes) override {
    RETURN_IF_ERROR(Enter());
    return memory_->Allocate(bytes, "a buffer of the host's");
  }
  absl::StatusOr<Buffer> AllocateResults(int64_t bytes) override {
    RETURN_IF_ERROR(Enter());
    return memory_->AllocateMapped(bytes);
  }
  absl::Status Write(const Buffer& to, int64_t offset, const void* data, int64_t bytes) override {
    RETURN_IF_ERROR(CheckRange(to, offset, bytes));
    RETURN_IF_ERROR(Enter());
    return memory_->Upload(to.address + offset, data, bytes);
  }
  absl::Status Read(const Buffer& from, int64_t offset, void* data, int64_t bytes) override {
    RETURN_IF_ERROR(CheckRange(from, offset, bytes));
    if (bytes == 0) return absl::OkStatus();
    // Results are in the host's own memory, and final once their step has been waited for.
    if (const void* host = memory_->Host(from.address + offset)) {
      std::memcpy(data, host, static_cast<size_t>(bytes));
      return absl::OkStatus();
    }
    RETURN_IF_ERROR(Enter());
    return memory_->Download(from.address + offset, data, bytes);
  }
  absl::Status Fill(const Buffer& to, int64_t offset, uint8_t value, int64_t bytes) override {
    RETURN_IF_ERROR(CheckRange(to, offset, bytes));
    RETURN_IF_ERROR(Enter());
    return memory_->Fill(to.address + offset, value, bytes);
  }

  absl::Status SubmitAll(std::span<const StepHeader> headers) override;
  absl::Status Wait() override;
  absl::StatusOr<bool> Done() override {
    if (flights_->count() == 0) return absl::FailedPreconditionError("no step is in flight");
    RETURN_IF_ERROR(Enter());
    const int result = driver_->EventQuery(flights_->OldestEnd());
    if (result == kCuNotReady) return false;
    RETURN_IF_ERROR(driver_->Check(result, "asking whether a step has ended"));
    return true;
  }

  absl::StatusOr<std::unique_ptr<DevicePacker>> MakePacker() override {
    RETURN_IF_ERROR(Enter());
    return MakeCudaPacker(driver_, module_, gpu_->stream, gpu_->multiprocessors);
  }

 private:
  absl::Status Enter() { return gpu_->Enter(); }
  void Complete(StepHeader* header, uint64_t step) const;
  absl::Status Launch(StepHeader header);

  absl::Status OpenDevice(const CudaExecutorOptions& options);
  absl::Status LoadKernel(const CudaExecutorOptions& options);
  absl::Status ChooseWorkers(const CudaExecutorOptions& options);
  absl::Status Allocate(const CudaExecutorOptions& options);
  absl::Status AllocateTensors(const CudaExecutorOptions& options);
  absl::Status AwaitEvent(CuEvent event);

  std::shared_ptr<CudaDevice> gpu_;  // first: closed last
  const CudaDriver* driver_ = nullptr;
  CuModule module_ = nullptr;
  CuFunction function_ = nullptr;
  std::unique_ptr<CudaMemory> memory_;
  std::unique_ptr<Program> program_;
  MemoryPlan plan_;
  std::vector<uint64_t> addresses_;  // by tensor
  ProgramRecord record_ = {};
  Buffer timeline_;
  std::unique_ptr<CudaAbort> abort_;
  CudaReport report_;
  std::unique_ptr<CudaFlights> flights_;
  int workers_ = 0, threads_ = 0;
  absl::Status behind_abort_;  // of the step in flight, if the one before it was aborted
  uint64_t step_ = 0, timeout_ns_ = 0;
};

absl::Status CudaExecutorImpl::OpenDevice(const CudaExecutorOptions& options) {
  gpu_ = options.shared;
  if (gpu_ == nullptr) {
    gpu_ = std::make_shared<CudaDevice>();
    RETURN_IF_ERROR(gpu_->Open(options.device));
  }
  RETURN_IF_ERROR(Enter());
  driver_ = gpu_->driver;
  report_.gpu = gpu_->name;
  report_.driver_version = driver_->version();
  report_.arch = gpu_->arch;
  report_.multiprocessors = gpu_->multiprocessors;
  flights_ = std::make_unique<CudaFlights>();
  RETURN_IF_ERROR(flights_->Open(driver_, gpu_->stream, options.time_steps));
  memory_ = std::make_unique<CudaMemory>();
  return memory_->Open(driver_, gpu_->stream);
}

absl::Status CudaExecutorImpl::LoadKernel(const CudaExecutorOptions& options) {
  KernelOptions kernel_options = options.kernel;
  kernel_options.timeline = options.timeline_tasks > 0;
  kernel_options.phases = options.phases;
  ASSIGN_OR_RETURN(Kernel kernel, BuildKernel(*program_, *report_.arch, kernel_options));
  report_.usage = kernel.usage;
  report_.compiled = kernel.compiled;
  report_.cache_note = kernel.cache_note;
  report_.cubin_bytes = static_cast<int64_t>(kernel.cubin.size());
  const PhaseSpan span(options.phases, "module_load");
  RETURN_IF_ERROR(driver_->Check(driver_->ModuleLoadData(&module_, kernel.cubin.data()),
                                 absl::StrCat("loading the kernel of ", program_->name)));
  RETURN_IF_ERROR(driver_->Check(driver_->ModuleGetFunction(&function_, module_, kStepKernel),
                                 "finding the kernel in its module"));
  return ChooseWorkers(options);
}

absl::Status CudaExecutorImpl::ChooseWorkers(const CudaExecutorOptions& options) {
  int static_shared = 0;
  RETURN_IF_ERROR(driver_->Check(driver_->FuncGetAttribute(&threads_, kCuMaxThreads, function_),
                                 "asking for the kernel's threads"));
  RETURN_IF_ERROR(
      driver_->Check(driver_->FuncGetAttribute(&static_shared, kCuSharedBytes, function_),
                     "asking for the kernel's shared memory"));
  const int available =
      std::min(driver_->Attribute(gpu_->device, kCuSharedBytesOptIn), report_.arch->shared_bytes);
  const int dynamic = available - static_shared;
  report_.dynamic_shared_bytes = dynamic;
  const int pages = (dynamic - kNotPagesBytes) / static_cast<int>(kPageBytes);
  RETURN_IF_ERROR(CheckPages(*program_, *report_.arch, pages, report_.gpu));
  RETURN_IF_ERROR(
      driver_->Check(driver_->FuncSetAttribute(function_, kCuMaxDynamicShared, dynamic),
                     absl::StrFormat("asking for %d bytes of shared memory per worker", dynamic)));
  int resident = 0;
  RETURN_IF_ERROR(driver_->Check(
      driver_->OccupancyMaxBlocks(&resident, function_, threads_, static_cast<size_t>(dynamic)),
      "asking how many workers fit"));
  const int most = resident * report_.multiprocessors;
  workers_ = options.workers == 0 ? report_.multiprocessors : options.workers;
  if (workers_ < 1 || workers_ > most) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%d workers: %s can run between 1 and %d at once (%d multiprocessors; a worker takes %d "
        "threads, %d registers each, and %d bytes of shared memory)",
        workers_, report_.gpu, most, report_.multiprocessors, threads_, report_.usage.registers,
        dynamic + static_shared));
  }
  return absl::OkStatus();
}

absl::Status CudaExecutorImpl::AllocateTensors(const CudaExecutorOptions& options) {
  const size_t tensors = program_->tensors.size();
  ASSIGN_OR_RETURN(plan_, PlanMemory(*program_, {}));
  // Again: others may have taken memory while the kernel was compiled.
  RETURN_IF_ERROR(CheckMemoryFits(*driver_, *program_, report_.gpu));
  ASSIGN_OR_RETURN(const auto base, memory_->AllocateArenas(plan_.bytes));
  addresses_.assign(tensors, 0);
  for (size_t i = 0; i < tensors; ++i) {
    addresses_[i] = base[plan_.tensors[i].arena] + static_cast<uint64_t>(plan_.tensors[i].offset);
  }
  for (const PlacedTensor& place : options.placed) {
    RETURN_IF_ERROR(CheckPlaced(*program_, place));
    RETURN_IF_ERROR(
        memory_->Upload(addresses_[place.tensor], place.data, plan_.tensors[place.tensor].bytes));
  }
  return absl::OkStatus();
}

absl::Status CudaExecutorImpl::Allocate(const CudaExecutorOptions& options) {
  RETURN_IF_ERROR(AllocateTensors(options));
  MachineShape machine;
  machine.workers = workers_;
  ASSIGN_OR_RETURN(const PolicyPlan policies, Plan(*program_, machine, options.policy));
  ASSIGN_OR_RETURN(std::vector<Node> nodes, BuildNodes(*program_, addresses_, policies.policy));
  RETURN_IF_ERROR(DescribeBoxes(*gpu_, *program_, memory_.get(), absl::MakeSpan(nodes)));
  const int64_t node_bytes = static_cast<int64_t>(nodes.size() * sizeof(Node));
  const int64_t address_bytes = static_cast<int64_t>(addresses_.size() * sizeof(uint64_t));
  // A program without events still has a counter, so that no pointer is null.
  const int64_t bank = std::max<int64_t>(program_->BankBytes(), kEventStrideBytes);
  ASSIGN_OR_RETURN(const Buffer node_buffer, memory_->Allocate(node_bytes, "node records"));
  ASSIGN_OR_RETURN(const Buffer published, memory_->Allocate(address_bytes, "tensor addresses"));
  ASSIGN_OR_RETURN(const Buffer counters, memory_->Allocate(2 * bank, "event counters"));
  abort_ = std::make_unique<CudaAbort>();
  RETURN_IF_ERROR(abort_->Allocate(*gpu_, memory_.get(), workers_));
  ASSIGN_OR_RETURN(const Buffer progress,
                   memory_->Allocate(int64_t{workers_} * kEventStrideBytes, "progress counters"));
  RETURN_IF_ERROR(memory_->Upload(node_buffer.address, nodes.data(), node_bytes));
  RETURN_IF_ERROR(memory_->Upload(published.address, addresses_.data(), address_bytes));
  record_.nodes = node_buffer.address;
  record_.published = published.address;
  record_.counters = counters.address;
  record_.bank_bytes = static_cast<uint64_t>(bank);
  record_.abort = abort_->address();
  record_.progress = progress.address;
  if (options.timeline_tasks > 0) {
    const TimelineHeader header = TimelineHeaderFor(options.timeline_tasks, workers_);
    ASSIGN_OR_RETURN(timeline_,
                     memory_->Allocate(static_cast<int64_t>(TimelineBytes(
                                           header.capacity, static_cast<uint32_t>(workers_))),
                                       "the timeline"));
    RETURN_IF_ERROR(memory_->Upload(timeline_.address, &header, sizeof(header)));
    record_.timeline = timeline_.address;
  }
  return absl::OkStatus();
}

// Fills in what is the executor's.
void CudaExecutorImpl::Complete(StepHeader* header, uint64_t step) const {
  header->abi = kAbiVersion;
  header->symbol_count = static_cast<uint32_t>(program_->symbols.size());
  header->workers = static_cast<uint32_t>(workers_);
  header->timeout_ns = timeout_ns_;
  header->step = step;
  header->bank = static_cast<uint32_t>(step & 1);
}

absl::Status CudaExecutorImpl::Launch(StepHeader header) {
  void* parameters[] = {&record_, &header};  // copied by the launch
  RETURN_IF_ERROR(driver_->Check(
      driver_->LaunchCooperative(
          function_, static_cast<unsigned>(workers_), 1, 1, static_cast<unsigned>(threads_), 1, 1,
          static_cast<unsigned>(report_.dynamic_shared_bytes), gpu_->stream, parameters),
      absl::StrFormat("launching a step of %s", program_->name)));
  ++step_;
  return absl::OkStatus();
}

absl::Status CudaExecutorImpl::SubmitAll(std::span<const StepHeader> headers) {
  if (flights_->count() >= CudaFlights::kMost) {
    return absl::FailedPreconditionError(
        "two steps are in flight: Wait for one before the next Submit");
  }
  std::vector<StepHeader> steps(headers.begin(), headers.end());
  for (size_t i = 0; i < steps.size(); ++i) {
    Complete(&steps[i], step_ + i);
    RETURN_IF_ERROR(CheckStep(*program_, steps[i]));
  }
  RETURN_IF_ERROR(Enter());
  RETURN_IF_ERROR(flights_->Begin());
  for (const StepHeader& step : steps) RETURN_IF_ERROR(Launch(step));
  return flights_->End();
}

absl::Status CudaExecutorImpl::AwaitEvent(CuEvent event) {
  // Polled with calls of the driver: a plain loop on memory might never see the kernel start.
  const Clock::time_point start = Clock::now();
  for (;;) {
    const int result = driver_->EventQuery(event);
    if (result != kCuNotReady) return driver_->Check(result, "a step on the GPU");
    const auto waited = Clock::now() - start;
    if (waited > kDeviceSilence) {
      return absl::DeadlineExceededError(
          absl::StrFormat("%s has not ended a step for %d minutes; the process must be restarted",
                          report_.gpu, kDeviceSilence.count()));
    }
    if (waited > std::chrono::microseconds(200)) {
      std::this_thread::sleep_for(std::chrono::microseconds(10));
    }
  }
}

absl::Status CudaExecutorImpl::Wait() {
  if (flights_->count() == 0) {
    return absl::FailedPreconditionError("Wait without a submitted step");
  }
  RETURN_IF_ERROR(Enter());
  const absl::Status ended = AwaitEvent(flights_->OldestEnd());
  const absl::Status timed = flights_->Retire();
  RETURN_IF_ERROR(ended);
  if (!behind_abort_.ok()) {
    flights_->ForgetEnd();
    return std::exchange(behind_abort_, absl::OkStatus());
  }
  RETURN_IF_ERROR(timed);
  const absl::Status story = abort_->Story(*program_);
  if (!absl::IsDeadlineExceeded(story)) return story;  // fine, or the copy itself failed
  flights_->ForgetEnd();
  // A step behind it sees the record and ends early: whatever it did counts as aborted too. Only
  // when it has ended may the banks and the record be cleaned, for the step that comes next.
  if (flights_->count() > 0) {
    RETURN_IF_ERROR(AwaitEvent(flights_->OldestEnd()));
    behind_abort_ = absl::Status(
        story.code(), absl::StrCat("the step before this one was aborted: ", story.message()));
  }
  RETURN_IF_ERROR(memory_->Fill(record_.counters, 0, static_cast<int64_t>(2 * record_.bank_bytes)));
  RETURN_IF_ERROR(abort_->Clear());
  return story;
}

}  // namespace

KernelCounts CountKernels() {
  return {Nvrtc::Runs(), KernelsBuilt()};
}

absl::StatusOr<std::unique_ptr<CudaExecutor>> MakeCudaExecutor(Program program,
                                                               const CudaExecutorOptions& options) {
  auto executor = std::make_unique<CudaExecutorImpl>();
  RETURN_IF_ERROR(executor->Start(std::move(program), options));
  return executor;
}

}  // namespace eventide
