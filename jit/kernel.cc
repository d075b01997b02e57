#include "jit/kernel.h"

#include <atomic>
#include <chrono>
#include <cstring>

#include "device/abi.h"
#include "jit/cache.h"
#include "jit/codegen.h"

namespace eventide {
namespace {

using Clock = std::chrono::steady_clock;

std::atomic<uint64_t> kernels_built{0};  // a statistic: no order needed

double Since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// What the cache keeps of a kernel: its resource report, then the cubin.
std::string Pack(const Compiled& compiled) {
  static_assert(std::is_trivially_copyable_v<KernelUsage>);
  std::string payload(sizeof(KernelUsage), '\0');
  std::memcpy(payload.data(), &compiled.usage, sizeof(KernelUsage));
  return payload + compiled.cubin;
}

// Tensor cores have no float32 products with the bits that the other targets promise.
absl::Status CheckStorage(const Program& program) {
  for (const ProgramKind& kind : program.kinds) {
    if (absl::string_view(VariantTypeName(kind.variant)) != "float") continue;
    return absl::InvalidArgumentError(
        absl::StrCat("op ", kind.op->name,
                     " is asked for with float32 storage, which runs on the CPU and in the simulator; "
                     "on a GPU choose bfloat16 or float16"));
  }
  return absl::OkStatus();
}

absl::Status Unpack(const std::string& payload, Kernel& kernel) {
  if (payload.size() <= sizeof(KernelUsage)) {
    return absl::DataLossError("a cached kernel is empty; delete the cubin cache");
  }
  std::memcpy(&kernel.usage, payload.data(), sizeof(KernelUsage));
  kernel.cubin = payload.substr(sizeof(KernelUsage));
  return absl::OkStatus();
}

// The source and all headers it includes.
absl::Status Generate(const Program& program, const GpuArch& arch, const KernelOptions& options,
                      Kernel& kernel, std::vector<HeaderText>& headers) {
  const PhaseSpan span(options.phases, "generate");
  const Clock::time_point start = Clock::now();
  kernel.source = Codegen(program, TargetOf(arch, options.timeline));
  if (options.packer) kernel.source += kPackerSource;
  ASSIGN_OR_RETURN(headers, CollectHeaders(kernel.source, options.extra_headers));
  kernel.generate_ms = Since(start);
  return absl::OkStatus();
}

}  // namespace

uint64_t KernelsBuilt() { return kernels_built.load(std::memory_order_relaxed); }

absl::StatusOr<Kernel> BuildKernel(const Program& program, const GpuArch& arch,
                                   const KernelOptions& options) {
  RETURN_IF_ERROR(CheckStorage(program));
  Kernel kernel;
  std::vector<HeaderText> headers;
  RETURN_IF_ERROR(Generate(program, arch, options, kernel, headers));
  const PhaseSpan span(options.phases, "nvrtc");
  const Clock::time_point compile_start = Clock::now();
  ASSIGN_OR_RETURN(const Nvrtc* nvrtc, Nvrtc::Get());
  const KernelCache cache(options.cache_folder.empty() ? KernelCache::DefaultFolder() : options.cache_folder);
  const auto make = [&]() -> absl::StatusOr<std::string> {
    if (const absl::Status writable = options.must_keep ? cache.CheckWritable() : absl::OkStatus(); !writable.ok()) {
      return absl::UnavailableError(absl::StrCat("kernels could not be kept: ", writable.message(),
                                                 "; set EVENTIDE_CACHE_DIR to a folder that can be written"));
    }
    ASSIGN_OR_RETURN(const Compiled compiled,
                     nvrtc->Compile(kernel.source, headers, arch, kStepKernel));
    return Pack(compiled);
  };
  if (options.use_cache) {
    std::vector<std::string> parts = {
        absl::StrCat("eventide abi ", kAbiVersion, ", report ", sizeof(KernelUsage)),
        absl::StrCat("nvrtc ", nvrtc->major(), ".", nvrtc->minor()), kernel.source};
    for (const std::string& option : nvrtc->Options(arch)) parts.push_back(option);
    for (const HeaderText& header : headers) {
      parts.push_back(header.name);
      parts.push_back(header.text);
    }
    ASSIGN_OR_RETURN(const CacheEntry entry, cache.GetOrMake(KernelCache::Key(parts), make));
    kernel.compiled = entry.made;
    kernel.kept = entry.kept;
    kernel.cache_note = entry.note;
    RETURN_IF_ERROR(Unpack(entry.payload, kernel));
  } else {
    ASSIGN_OR_RETURN(const std::string payload, make());
    kernel.compiled = true;
    RETURN_IF_ERROR(Unpack(payload, kernel));
  }
  kernel.compile_ms = Since(compile_start);
  kernels_built.fetch_add(1, std::memory_order_relaxed);
  return kernel;
}

}  // namespace eventide
