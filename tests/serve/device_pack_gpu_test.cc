// Packing on a GPU: the host packer's bytes, and how long whole models take.
#include <chrono>
#include <iostream>
#include <thread>

#include "jit/kernel.h"
#include "runtime/cuda_device.h"
#include "runtime/cuda_memory.h"
#include "runtime/cuda_packer.h"
#include "tests/support/gpu.h"
#include "tests/support/pack_case.h"

namespace eventide {
namespace {

// A GPU with the packing kernels alone.
class Gpu {
 public:
  static std::unique_ptr<Gpu> Open() {
    if (!HaveGpu()) return nullptr;
    std::unique_ptr<Gpu> gpu(new Gpu());
    const absl::Status started = gpu->Start();
    INFO(started.ToString());
    REQUIRE(started.ok());
    return gpu;
  }
  ~Gpu() {
    if (module_ != nullptr) device_.driver->ModuleUnload(module_);
  }

  std::unique_ptr<DevicePacker> Packer() {
    auto packer =
        MakeCudaPacker(device_.driver, module_, device_.stream, device_.multiprocessors);
    INFO(packer.status());
    REQUIRE(packer.ok());
    return std::move(*packer);
  }
  int64_t FreeBytes() const {
    size_t free = 0, total = 0;
    REQUIRE(device_.driver->MemGetInfo(&free, &total) == 0);
    return static_cast<int64_t>(free);
  }
  // Blocks live as long as the memory.
  std::unique_ptr<CudaMemory> Memory() {
    auto memory = std::make_unique<CudaMemory>();
    REQUIRE(memory->Open(device_.driver, device_.stream).ok());
    return memory;
  }

 private:
  Gpu() = default;
  absl::Status Start() {
    RETURN_IF_ERROR(device_.Open(0));
    ASSIGN_OR_RETURN(const Nvrtc* nvrtc, Nvrtc::Get());
    ASSIGN_OR_RETURN(const std::vector<HeaderText> headers, CollectHeaders(kPackerSource));
    ASSIGN_OR_RETURN(const Compiled compiled, nvrtc->Compile(kPackerSource, headers, *device_.arch,
                                                             "eventide_pack_tiles"));
    return device_.driver->Check(
        device_.driver->ModuleLoadData(&module_, compiled.cubin.data()), "loading the packer");
  }

  CudaDevice device_;
  CuModule module_ = nullptr;
};

PackMemory OnGpu(CudaMemory* gpu) {
  PackMemory memory;
  memory.allocate = [gpu](int64_t bytes) {
    const absl::StatusOr<Buffer> buffer = gpu->Allocate(bytes, "a test");
    REQUIRE(buffer.ok());
    REQUIRE(gpu->Fill(buffer->address, 0xee, bytes).ok());
    return buffer->address;
  };
  memory.download = [gpu](uint64_t address, int64_t bytes) {
    std::vector<uint8_t> data(static_cast<size_t>(bytes));
    REQUIRE(gpu->Download(address, data.data(), bytes).ok());
    return data;
  };
  return memory;
}

TEST_CASE("a GPU packs the host packer's bytes, for odd shapes and all tile heights") {
  const std::unique_ptr<Gpu> gpu = Gpu::Open();
  if (gpu == nullptr) return;
  const auto memory = gpu->Memory();
  for (const char* preset : {"test-llama", "test-qwen3"}) {
    for (const int height : {16, 32, 64}) {
      for (const DType storage : {DType::kBF16, DType::kF16}) {
        for (const bool stored : {false, true}) {
          const auto source = PackSource(preset, stored);
          INFO(preset << ", height " << height << ", " << DTypeName(storage) << ", "
                      << (stored ? "stored" : "drawn"));
          CheckPacked(*source, OddJobs(source->config(), height), storage, "cuda", *gpu->Packer(),
                      OnGpu(memory.get()));
        }
      }
    }
  }
}

TEST_CASE("on a GPU, whole decoders are packed as on the host, stored in many batches or drawn") {
  const std::unique_ptr<Gpu> gpu = Gpu::Open();
  if (gpu == nullptr) return;
  for (const char* preset : {"test-llama", "test-qwen3"}) {
    for (const bool stored : {false, true}) {
      const auto memory = gpu->Memory();
      const auto source = PackSource(preset, stored);
      CheckPacked(*source, AllJobs(source->config(), DType::kBF16), DType::kBF16, "cuda",
                  *gpu->Packer(), OnGpu(memory.get()));
    }
  }
}

TEST_CASE("on a GPU, elements far into a large tensor are drawn as on the host") {
  const std::unique_ptr<Gpu> gpu = Gpu::Open();
  if (gpu == nullptr) return;
  const auto memory = gpu->Memory();
  const auto source = PackSource("llama-3.1-8b", false);
  CheckPacked(*source, {LastRowsJob(source->config())}, DType::kBF16, "cuda", *gpu->Packer(),
              OnGpu(memory.get()));
}

// A model's tensors as a checkpoint in the page cache would give them: one piece of memory over and over.
class Repeated : public WeightSource {
 public:
  explicit Repeated(const ModelConfig& config)
      : WeightSource(config), shapes_(RandomWeights(config, 0)), bytes_(kPeriod, 0x3c) {}
  std::vector<TensorInfo> Tensors() const override { return shapes_->Tensors(); }
  absl::StatusOr<TensorInfo> Info(absl::string_view name) const override {
    return shapes_->Info(name);
  }
  absl::Status Read(absl::string_view, int64_t first, int64_t count, DType as,
                    void* out) const override {
    const int64_t size = static_cast<int64_t>(DTypeSize(as)), bytes = count * size;
    EVT_CHECK(bytes <= kPeriod);
    const int64_t at = std::min(first * size % kPeriod, kPeriod - bytes);
    std::memcpy(out, bytes_.data() + at, static_cast<size_t>(bytes));
    return absl::OkStatus();
  }

 private:
  static constexpr int64_t kPeriod = int64_t{512} << 20;  // beyond every cache
  const std::unique_ptr<WeightSource> shapes_;
  const std::vector<uint8_t> bytes_;
};

// Packs a preset's decoder on the GPU and returns the seconds it took.
double TimeOf(Gpu& gpu, const char* preset, bool stored) {
  const ModelConfig config = *PresetConfig(preset);
  const std::vector<PackJob> jobs = AllJobs(config, DType::kBF16);
  const auto memory = gpu.Memory();
  std::map<int, uint64_t> at;
  int64_t total = 0;
  for (const auto& [tensor, bytes] : TensorBytes(jobs, DType::kBF16)) {
    const absl::StatusOr<Buffer> buffer = memory->Allocate(bytes, "weights");
    INFO(buffer.status());
    REQUIRE(buffer.ok());
    at[tensor] = buffer->address;
    total += bytes;
  }
  uint8_t last = 0;
  REQUIRE(memory->Download(at.begin()->second, &last, 1).ok());  // memory is there and zeroed
  std::unique_ptr<WeightSource> source = RandomWeights(config, 0);
  if (stored) source = std::make_unique<Repeated>(config);
  PhaseLog phases;
  PackOptions options;
  options.storage = DType::kBF16;
  options.order = FragmentOrderOf("cuda");
  options.threads = static_cast<int>(std::max(2u, std::thread::hardware_concurrency()));
  options.phases = &phases;
  const auto start = std::chrono::steady_clock::now();
  const absl::Status packed = PackOnDevice(
      *source, jobs, options, [&](int tensor) { return at.at(tensor); }, *gpu.Packer());
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  INFO(packed.ToString());
  REQUIRE(packed.ok());
  std::cout << preset << (stored ? ", from memory: " : ", drawn: ") << total * 1e-9 << " GB in "
            << seconds << " s, " << total * 1e-9 / seconds << " GB/s (waited for reads "
            << phases.TotalMs() << " ms; " << options.threads << " threads)\n";
  return seconds;
}

TEST_CASE("a GPU packs 16 GB within five seconds, and draws them faster") {
  const std::unique_ptr<Gpu> gpu = Gpu::Open();
  if (gpu == nullptr) return;
  CHECK(TimeOf(*gpu, "llama-3.2-1b", false) < 1);
  CHECK(TimeOf(*gpu, "llama-3.2-1b", true) < 2);
  if (gpu->FreeBytes() < int64_t{18} << 30) return Skip("llama-3.1-8b needs 18 GiB on the GPU");
  CHECK(TimeOf(*gpu, "llama-3.1-8b", false) < 2);
  CHECK(TimeOf(*gpu, "llama-3.1-8b", true) < 5);
}

}  // namespace
}  // namespace eventide
