// From a program to a loadable kernel: generate, collect headers, compile or take from the cache.
#pragma once

#include <string>
#include <vector>

#include "core/phases.h"
#include "core/program.h"
#include "jit/arch.h"
#include "jit/nvrtc.h"
#include "jit/sources.h"

namespace eventide {

struct KernelOptions {
  std::vector<HeaderText> extra_headers;  // ops that are not part of Eventide, as "ops/<name>.h"
  bool use_cache = true;
  bool must_keep = false;  // an error, before anything is compiled, where the cache could not keep it
  bool timeline = false;  // CodegenTarget::timeline
  bool packer = false;    // also the kernels that pack weights: one compile, one module
  std::string cache_folder;  // empty: $EVENTIDE_CACHE_DIR, or the user's cache folder
  PhaseLog* phases = nullptr;  // "generate", then "nvrtc": loading it, and compiling or the cache
};

struct Kernel {
  std::string cubin;
  std::string source;
  KernelUsage usage;
  bool compiled = false;   // in this process, not taken from the cache
  bool kept = false;       // the cache has it now
  std::string cache_note;  // why the cache could not be used, if so
  double generate_ms = 0, compile_ms = 0;
};

// Kernels that BuildKernel has brought in this process, compiled or cached.
uint64_t KernelsBuilt();

// The kernels that pack weights, as a source of their own or at the end of another.
inline constexpr char kPackerSource[] = "\n#include \"device/arch/nvidia_pack.cuh\"\n";

absl::StatusOr<Kernel> BuildKernel(const Program& program, const GpuArch& arch,
                                   const KernelOptions& options = {});

}  // namespace eventide
