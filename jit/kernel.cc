#include "jit/kernel.h"

#include <chrono>

#include "jit/codegen.h"

namespace eventide {
namespace {

using Clock = std::chrono::steady_clock;

double Since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

}  // namespace

absl::StatusOr<Kernel> BuildKernel(const Program& program, const GpuArch& arch,
                                   const KernelOptions& options) {
  Kernel kernel;
  const Clock::time_point start = Clock::now();
  kernel.source = Codegen(program, {arch.header, CodegenTarget::Entry::kCuda});
  ASSIGN_OR_RETURN(const std::vector<HeaderText> headers,
                   CollectHeaders(kernel.source, options.extra_headers));
  kernel.generate_ms = Since(start);

  const Clock::time_point compile_start = Clock::now();
  ASSIGN_OR_RETURN(const Nvrtc* nvrtc, Nvrtc::Get());
  ASSIGN_OR_RETURN(Compiled compiled, nvrtc->Compile(kernel.source, headers, arch, kStepKernel));
  kernel.cubin = std::move(compiled.cubin);
  kernel.usage = compiled.usage;
  kernel.compiled = true;
  kernel.compile_ms = Since(compile_start);
  return kernel;
}

}  // namespace eventide
