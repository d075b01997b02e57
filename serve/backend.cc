#include "serve/backend.h"

#include "absl/strings/str_cat.h"
#include "core/status.h"
#include "device/arch/cpu.h"
#include "runtime/cpu_executor.h"
#include "runtime/cuda_executor.h"
#include "runtime/sim_executor.h"

namespace eventide {
namespace {

// CpuWorker::FragmentElement, whatever the instruction set; the simulator's too.
int32_t ColumnOrder(int32_t row, int32_t k) {
  return CpuWorker<kCpuPortable>::FragmentElement(row, k);
}

// A fragments of mma.sync m16n8k16 (device/arch/nvidia.cuh): a lane's eight elements are
// neighbours, so that one 16-byte load fetches what it multiplies with.
int32_t MmaOrder(int32_t row, int32_t k) {
  const int32_t lane = row % 8 * 4 + k % 8 / 2;
  const int32_t reg = row / 8 + k / 8 * 2;
  return lane * 8 + reg * 2 + k % 2;
}

template <class Options>
Options WithCommon(const BackendOptions& options) {
  Options result;
  result.workers = options.workers;
  result.policy = options.policy;
  result.timeout_ns = options.timeout_ns;
  result.timeline_tasks = options.timeline_tasks;
  result.phases = options.phases;
  return result;
}

absl::StatusOr<Backend> MakeCpu(Program program, const BackendOptions& options) {
  Backend backend;
  ASSIGN_OR_RETURN(backend.executor,
                   MakeCpuExecutor(std::move(program), WithCommon<CpuExecutorOptions>(options)));
  backend.done = [] { return true; };  // a step has run when Submit returns
  return backend;
}

absl::StatusOr<Backend> MakeSim(Program program, const BackendOptions& options) {
  SimExecutorOptions sim = WithCommon<SimExecutorOptions>(options);
  if (options.timeline_tasks > 0) {
    return absl::UnimplementedError("the simulator has no clock: timelines are of cpu and cuda");
  }
  sim.seed = options.seed;
  sim.pages = options.sim_pages;
  if (sim.workers == 0) sim.workers = kSimWorkers;
  Backend backend;
  ASSIGN_OR_RETURN(backend.executor, MakeSimBackend(std::move(program), sim));
  backend.done = [] { return true; };
  return backend;
}

absl::StatusOr<Backend> MakeCuda(Program program, const BackendOptions& options) {
  Backend backend;
  CudaExecutorOptions cuda_options = WithCommon<CudaExecutorOptions>(options);
  cuda_options.time_steps = options.time_steps;
  cuda_options.kernel.packer = true;
  if (options.beside != nullptr) {
    cuda_options.shared = static_cast<CudaExecutor&>(*options.beside->executor).device();
  }
  ASSIGN_OR_RETURN(std::unique_ptr<CudaExecutor> executor,
                   MakeCudaExecutor(std::move(program), cuda_options));
  backend.cubin_bytes = executor->report().cubin_bytes;
  backend.cache_note = executor->report().cache_note;
  backend.done = [cuda = executor.get()] { return cuda->Done(); };
  backend.packer = [cuda = executor.get()] { return cuda->MakePacker(); };
  backend.executor = std::move(executor);
  return backend;
}

struct DeviceRow {
  const char* name;
  FragmentOrder order;
  absl::StatusOr<Backend> (*make)(Program, const BackendOptions&);
};
constexpr DeviceRow kDevices[] = {{"cpu", &ColumnOrder, &MakeCpu},
                                  {"sim", &ColumnOrder, &MakeSim},
                                  {"cuda", &MmaOrder, &MakeCuda}};

const DeviceRow* FindDevice(const std::string& name) {
  for (const DeviceRow& row : kDevices) {
    if (name == row.name) return &row;
  }
  return nullptr;
}

}  // namespace

absl::StatusOr<std::string> ResolveDevice(const std::string& device) {
  std::string why;
  if (device == "auto") return CudaAvailable(&why) ? "cuda" : "cpu";
  if (FindDevice(device) == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown device '", device, "'; there are auto, cpu, sim, cuda"));
  }
  if (device == "cuda" && !CudaAvailable(&why)) {
    return absl::FailedPreconditionError(
        absl::StrCat("--device cuda: ", why, "; --device cpu runs everywhere"));
  }
  return device;
}

FragmentOrder FragmentOrderOf(const std::string& device) {
  const DeviceRow* row = FindDevice(device);
  EVT_CHECK(row != nullptr);
  return row->order;
}

BackendCounts CountBackends() {
  const KernelCounts counts = CountKernels();
  return {counts.compilations, counts.kernels};
}

absl::StatusOr<Backend> MakeBackend(Program program, const BackendOptions& options) {
  ASSIGN_OR_RETURN(const std::string device, ResolveDevice(options.device));
  const DeviceRow* row = FindDevice(device);
  ASSIGN_OR_RETURN(Backend backend, row->make(std::move(program), options));
  backend.device = device;
  backend.order = row->order;
  return backend;
}

}  // namespace eventide
