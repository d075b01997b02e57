#include "runtime/cuda_probe.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "jit/nvrtc.h"

namespace eventide {
namespace {

constexpr char kSource[] = "#include \"device/arch/nvidia_probes.cuh\"\n";
constexpr char kReadKernel[] = "probe_read";
constexpr int kReadThreads = 1024;  // kProbeThreads
constexpr int64_t kReadBytes = int64_t{4} << 30;
constexpr uint32_t kRounds = 400;

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

std::vector<double> PerRound(const std::vector<uint64_t>& ns, double rounds) {
  std::vector<double> result;
  for (const uint64_t value : ns) result.push_back(static_cast<double>(value) / rounds);
  return result;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaProbe>> CudaProbe::Open(int ordinal) {
  std::unique_ptr<CudaProbe> probe(new CudaProbe());
  RETURN_IF_ERROR(probe->gpu_.Open(ordinal));
  RETURN_IF_ERROR(probe->memory_.Open(probe->gpu_.driver, probe->gpu_.stream));
  RETURN_IF_ERROR(probe->Load());
  return probe;
}

CudaProbe::~CudaProbe() {
  if (gpu_.context == nullptr) return;
  gpu_.driver->CtxSetCurrent(gpu_.context);
  if (gpu_.stream != nullptr) gpu_.driver->StreamSynchronize(gpu_.stream);
  if (started_ != nullptr) gpu_.driver->EventDestroy(started_);
  if (ended_ != nullptr) gpu_.driver->EventDestroy(ended_);
  if (module_ != nullptr) gpu_.driver->ModuleUnload(module_);
}

absl::Status CudaProbe::Load() {
  const CudaDriver& driver = *gpu_.driver;
  ASSIGN_OR_RETURN(const Nvrtc* nvrtc, Nvrtc::Get());
  ASSIGN_OR_RETURN(const std::vector<HeaderText> headers, CollectHeaders(kSource));
  ASSIGN_OR_RETURN(const Compiled compiled,
                   nvrtc->Compile(kSource, headers, *gpu_.arch, kReadKernel));
  RETURN_IF_ERROR(driver.Check(driver.ModuleLoadData(&module_, compiled.cubin.data()),
                               "loading the measuring kernels"));
  RETURN_IF_ERROR(driver.Check(driver.EventCreate(&started_, 0), "creating an event"));
  RETURN_IF_ERROR(driver.Check(driver.EventCreate(&ended_, 0), "creating an event"));
  const int64_t blocks = gpu_.multiprocessors;
  ASSIGN_OR_RETURN(words_, memory_.Allocate(2 * blocks * kEventStrideBytes, "probe words"));
  ASSIGN_OR_RETURN(ns_, memory_.Allocate(std::max<int64_t>(blocks, kLanes) * 8, "probe times"));
  return absl::OkStatus();
}

absl::StatusOr<CuFunction> CudaProbe::Find(const char* kernel) {
  CuFunction function = nullptr;
  RETURN_IF_ERROR(gpu_.driver->Check(gpu_.driver->ModuleGetFunction(&function, module_, kernel),
                                     absl::StrCat("finding the kernel ", kernel)));
  return function;
}

absl::Status CudaProbe::Launch(CuFunction function, int blocks, int threads, void** parameters) {
  // Cooperative: all blocks are on the GPU at once, or the driver refuses.
  return gpu_.driver->Check(gpu_.driver->LaunchCooperative(function, static_cast<unsigned>(blocks),
                                                           1, 1, static_cast<unsigned>(threads), 1,
                                                           1, 0, gpu_.stream, parameters),
                            "launching a measuring kernel");
}

absl::StatusOr<int64_t> CudaProbe::FreeBytes() {
  size_t free = 0, total = 0;
  RETURN_IF_ERROR(gpu_.Enter());
  RETURN_IF_ERROR(
      gpu_.driver->Check(gpu_.driver->MemGetInfo(&free, &total), "asking how much memory is free"));
  return static_cast<int64_t>(free);
}

absl::Status CudaProbe::AllocateRead() {
  ASSIGN_OR_RETURN(const int64_t free, FreeBytes());
  const int64_t cache = gpu_.driver->Attribute(gpu_.device, kCuL2Bytes);
  const int64_t wanted = std::min(kReadBytes, free / 2) & ~int64_t{4095};
  if (wanted < 8 * cache) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("measuring the read ceiling needs %d MiB beside the model; %d MiB are free",
                        (16 * cache) >> 20, free >> 20));
  }
  ASSIGN_OR_RETURN(read_, memory_.Allocate(wanted, "the read ceiling"));
  return absl::OkStatus();
}

absl::StatusOr<double> CudaProbe::ReadGbps(int repeats) {
  const CudaDriver& driver = *gpu_.driver;
  RETURN_IF_ERROR(gpu_.Enter());
  if (read_.bytes == 0) RETURN_IF_ERROR(AllocateRead());
  ASSIGN_OR_RETURN(const CuFunction function, Find(kReadKernel));
  uint64_t bytes = static_cast<uint64_t>(read_.bytes);
  void* parameters[] = {&read_.address, &bytes, &words_.address};
  double best = 0;
  for (int i = 0; i < repeats; ++i) {
    RETURN_IF_ERROR(driver.Check(driver.EventRecord(started_, gpu_.stream), "recording an event"));
    RETURN_IF_ERROR(Launch(function, gpu_.multiprocessors, kReadThreads, parameters));
    RETURN_IF_ERROR(driver.Check(driver.EventRecord(ended_, gpu_.stream), "recording an event"));
    RETURN_IF_ERROR(driver.Check(driver.EventSynchronize(ended_), "measuring the read ceiling"));
    float ms = 0;
    RETURN_IF_ERROR(
        driver.Check(driver.EventElapsedTime(&ms, started_, ended_), "timing a measuring kernel"));
    if (ms > 0) best = std::max(best, static_cast<double>(bytes) / (ms * 1e6));
  }
  return best;
}

absl::StatusOr<std::vector<uint64_t>> CudaProbe::Run(const char* kernel, int blocks, int threads,
                                                     uint32_t rounds) {
  RETURN_IF_ERROR(gpu_.Enter());
  ASSIGN_OR_RETURN(const CuFunction function, Find(kernel));
  RETURN_IF_ERROR(memory_.Fill(words_.address, 0, words_.bytes));
  RETURN_IF_ERROR(memory_.Fill(ns_.address, 0, ns_.bytes));
  void* parameters[] = {&words_.address, &ns_.address, &rounds};
  RETURN_IF_ERROR(Launch(function, blocks, threads, parameters));
  std::vector<uint64_t> ns(static_cast<size_t>(ns_.bytes / 8));
  RETURN_IF_ERROR(memory_.Download(ns_.address, ns.data(), ns_.bytes));
  return ns;
}

absl::StatusOr<SyncTimes> CudaProbe::Sync() {
  const int blocks = gpu_.multiprocessors;
  SyncTimes times;
  // Twice each: the first run finds cold caches and clocks.
  for (int pass = 0; pass < 2; ++pass) {
    ASSIGN_OR_RETURN(std::vector<uint64_t> hop, Run("probe_hop", blocks, 32, kRounds));
    hop.resize(static_cast<size_t>(blocks));
    hop.erase(hop.begin());  // block 0 is the sender
    std::vector<double> us = PerRound(hop, 2e3 * kRounds);
    std::sort(us.begin(), us.end());
    if (!us.empty()) times.hop_us_min = us.front(), times.hop_us_max = us.back();
    times.hop_us = Median(us);
    ASSIGN_OR_RETURN(std::vector<uint64_t> alone, Run("probe_ticket", 1, 32, kRounds));
    times.ticket_us = PerRound(alone, 1e3 * kRounds)[0];
    ASSIGN_OR_RETURN(std::vector<uint64_t> all, Run("probe_ticket", blocks, 32, kRounds));
    all.resize(static_cast<size_t>(blocks));
    times.ticket_contended_us = Median(PerRound(all, 1e3 * kRounds));
    ASSIGN_OR_RETURN(const std::vector<uint64_t> page, Run("probe_page", 1, 32, 25 * kRounds));
    times.page_ns = PerRound(page, 25 * kRounds)[0];
    ASSIGN_OR_RETURN(const std::vector<uint64_t> both, Run("probe_page", 1, 64, 25 * kRounds));
    times.page_contended_ns = PerRound(both, 25 * kRounds)[0];
    ASSIGN_OR_RETURN(std::vector<uint64_t> barrier, Run("probe_barrier", blocks, 32, kRounds));
    times.barrier_us = PerRound(barrier, 1e3 * kRounds)[0];
  }
  return times;
}

}  // namespace eventide
