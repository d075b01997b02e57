// NVRTC, loaded when first needed: CUDA C++ text to a cubin for one architecture, with a report of
// what the kernel uses. Nothing here needs CUDA to be built.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "jit/arch.h"
#include "jit/sources.h"

namespace eventide {

// Of one kernel. Registers, stack, shared memory and code are read from the cubin itself; spills from the
// assembler's log, which must agree with it (no stack: no spills).
struct KernelUsage {
  int registers = 0;
  int stack_bytes = 0;
  int spill_bytes = 0;   // stores plus loads
  int shared_bytes = 0;  // static
  int code_bytes = 0;    // machine code, from start to end; of NVIDIA's since sm_70, 16 an instruction
  int max_threads = 0;   // of a block, from its launch bounds
  bool setmaxnreg_ignored = false;
};

struct Compiled {
  std::string cubin, ptx, log;
  KernelUsage usage;
  double milliseconds = 0;      // wall
  double cpu_milliseconds = 0;  // of this thread: what it costs whatever else the machine does
};

class Nvrtc {
 public:
  // Loads $EVENTIDE_NVRTC if set and nothing else then; otherwise what the dynamic linker, CUDA's
  // usual folders or Python's packages have. The error says what to install. One library per
  // process.
  static absl::StatusOr<const Nvrtc*> Get();

  // Compiles the one kernel of `source`; its headers are found by name in `headers`. An error
  // carries the compiler's log. Safe to call from several threads.
  absl::StatusOr<Compiled> Compile(const std::string& source,
                                   const std::vector<HeaderText>& headers, const GpuArch& arch,
                                   const std::string& kernel) const;

  // Everything Compile passes to the compiler: part of a cache key.
  std::vector<std::string> Options(const GpuArch& arch) const;

  // Compilations of this process so far, failed ones included.
  static uint64_t Runs();

  int major() const { return major_; }
  int minor() const { return minor_; }
  const std::string& path() const { return path_; }

  struct Functions;

 private:
  Nvrtc() = default;
  static absl::StatusOr<const Nvrtc*> Load();

  std::shared_ptr<const Functions> functions_;
  std::string path_;
  int major_ = 0, minor_ = 0;
  bool has_no_cache_ = false;
};

// Where NVRTC is looked for, in order, when EVENTIDE_NVRTC is not set. For messages and tests.
std::vector<std::string> NvrtcCandidates();

}  // namespace eventide
