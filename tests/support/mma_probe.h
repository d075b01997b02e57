// The matrix instructions of a GPU one by one: device/arch/nvidia_mma_probes.cuh compiled by our own JIT.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "device/dtype.h"
#include "jit/nvrtc.h"
#include "runtime/cuda_device.h"
#include "runtime/cuda_memory.h"

namespace eventide {

template <class T>
constexpr const char* MmaTypeName() {
  return std::is_same_v<T, BF16> ? "bf16" : "f16";
}

inline constexpr int kWgmmaWidths = 32;  // 8, 16, ... 256

// Kernels of all forms; those of wgmma only where the architecture has it. An instruction's text needs
// its registers by number, so it is written out here: logic is in the header.
inline std::string MmaProbeSource(bool wgmma) {
  std::string source = "#include \"device/arch/nvidia_mma_probes.cuh\"\n";
  if (!wgmma) return source;
  for (const char* type : {"bf16", "f16"}) {
    for (int n = 8; n <= 8 * kWgmmaWidths; n += 8) {
      std::string sums, outputs;
      for (int i = 0; i < n / 2; ++i) {
        absl::StrAppend(&sums, i > 0 ? ", " : "", "%", i);
        absl::StrAppend(&outputs, i > 0 ? ", " : "", "\"+f\"(c[", i, "])");
      }
      const std::string name = absl::StrCat("Wgmma_", type, "_", n);
      absl::StrAppend(&source, "struct ", name, " {\n  static EVT_FN void Run(float (&c)[", n / 2,
                      "], const uint4& a, eventide::u64 b) {\n    asm volatile(\"wgmma.mma_async.sync"
                      ".aligned.m64n", n, "k16.f32.", type, ".", type, " {", sums, "}, {%", n / 2,
                      ", %", n / 2 + 1, ", %", n / 2 + 2, ", %", n / 2 + 3, "}, %", n / 2 + 4,
                      ", 1, 1, 1, 0;\"\n        : ", outputs,
                      "\n        : \"r\"(a.x), \"r\"(a.y), \"r\"(a.z), \"r\"(a.w), \"l\"(b) : \"memory\");"
                      "\n  }\n};\nextern \"C\" __global__ void __launch_bounds__(128) probe_wgmma_",
                      type, "_", n, "(eventide::MmaProbe p) {\n  eventide::ProbeWgmma<eventide::",
                      type[0] == 'b' ? "BF16" : "F16", ", ", n, ", ", name, ">(p);\n}\n");
    }
  }
  return source;
}

inline absl::StatusOr<Compiled> CompileMmaProbe(const GpuArch& arch, bool wgmma) {
  const std::string source = MmaProbeSource(wgmma);
  ASSIGN_OR_RETURN(const Nvrtc* nvrtc, Nvrtc::Get());
  ASSIGN_OR_RETURN(const std::vector<HeaderText> headers, CollectHeaders(source));
  return nvrtc->Compile(source, headers, arch, "probe_mma_bf16");
}

// What the kernels take: MmaProbe of the header.
struct MmaProbeParameters {
  uint64_t a, b, out;
  uint32_t k, first, steps, b_rows;
};

class MmaProbe {
 public:
  static absl::StatusOr<std::unique_ptr<MmaProbe>> Open() {
    std::unique_ptr<MmaProbe> probe(new MmaProbe());
    RETURN_IF_ERROR(probe->gpu_.Open(0));
    const CudaDriver& driver = *probe->gpu_.driver;
    RETURN_IF_ERROR(probe->memory_.Open(&driver, probe->gpu_.stream));
    probe->has_wgmma_ = std::string(probe->gpu_.arch->name) == "sm_90a";
    ASSIGN_OR_RETURN(const Compiled compiled,
                     CompileMmaProbe(*probe->gpu_.arch, probe->has_wgmma_));
    RETURN_IF_ERROR(driver.Check(driver.ModuleLoadData(&probe->module_, compiled.cubin.data()),
                                 "loading the probes"));
    for (Buffer& buffer : probe->buffers_) {
      ASSIGN_OR_RETURN(buffer, probe->memory_.Allocate(kBytes, "probe operands"));
    }
    return probe;
  }
  ~MmaProbe() {
    if (gpu_.context == nullptr) return;
    gpu_.driver->CtxSetCurrent(gpu_.context);
    gpu_.driver->StreamSynchronize(gpu_.stream);
    if (module_ != nullptr) gpu_.driver->ModuleUnload(module_);
  }

  bool has_wgmma() const { return has_wgmma_; }
  const std::string& gpu() const { return gpu_.name; }

  // [a rows][b rows] of a chain of `steps` steps from column `first`; a and b are row-major, k columns.
  template <class T>
  absl::StatusOr<std::vector<float>> Mma(const std::vector<T>& a, const std::vector<T>& b, int k,
                                         int first, int steps) {
    const int rows = static_cast<int>(a.size()) / k, columns = static_cast<int>(b.size()) / k;
    return Run(absl::StrCat("probe_mma_", MmaTypeName<T>()), a, b, k, first, steps,
               static_cast<unsigned>(rows / 16), static_cast<unsigned>(columns / 8), 32);
  }
  // 64 rows of a, and as many of b as the instruction is wide.
  template <class T>
  absl::StatusOr<std::vector<float>> Wgmma(const std::vector<T>& a, const std::vector<T>& b, int k,
                                           int first, int steps) {
    const int n = static_cast<int>(b.size()) / k;
    return Run(absl::StrCat("probe_wgmma_", MmaTypeName<T>(), "_", n), a, b, k, first, steps, 1, 1,
               128);
  }

 private:
  static constexpr int64_t kBytes = int64_t{8} << 20;

  template <class T>
  absl::StatusOr<std::vector<float>> Run(const std::string& kernel, const std::vector<T>& a,
                                         const std::vector<T>& b, int k, int first, int steps,
                                         unsigned x, unsigned y, unsigned threads) {
    const CudaDriver& driver = *gpu_.driver;
    RETURN_IF_ERROR(gpu_.Enter());
    CuFunction function = nullptr;
    RETURN_IF_ERROR(
        driver.Check(driver.ModuleGetFunction(&function, module_, kernel.c_str()), kernel));
    std::vector<float> out(a.size() / static_cast<size_t>(k) * (b.size() / static_cast<size_t>(k)));
    RETURN_IF_ERROR(memory_.Upload(buffers_[0].address, a.data(), static_cast<int64_t>(a.size() * 2)));
    RETURN_IF_ERROR(memory_.Upload(buffers_[1].address, b.data(), static_cast<int64_t>(b.size() * 2)));
    RETURN_IF_ERROR(memory_.Fill(buffers_[2].address, 0xff, static_cast<int64_t>(out.size() * 4)));
    MmaProbeParameters p = {buffers_[0].address, buffers_[1].address, buffers_[2].address,
                            static_cast<uint32_t>(k), static_cast<uint32_t>(first),
                            static_cast<uint32_t>(steps),
                            static_cast<uint32_t>(b.size() / static_cast<size_t>(k))};
    void* parameters[] = {&p};
    RETURN_IF_ERROR(driver.Check(driver.LaunchCooperative(function, x, y, 1, threads, 1, 1, 0,
                                                          gpu_.stream, parameters),
                                 kernel));
    RETURN_IF_ERROR(
        memory_.Download(buffers_[2].address, out.data(), static_cast<int64_t>(out.size() * 4)));
    return out;
  }

  CudaDevice gpu_;  // first: closed last
  CudaMemory memory_;
  CuModule module_ = nullptr;
  Buffer buffers_[3];
  bool has_wgmma_ = false;
};

}  // namespace eventide
