// The kernels that pack weights: small and quick to compile alone, and beside a megakernel in one module.
#include <iostream>

#include "core/graph.h"
#include "jit/codegen.h"
#include "jit/cubin.h"
#include "jit/kernel.h"
#include "tests/jit/toy_graphs.h"
#include "tests/support/compile_budget.h"

namespace eventide {
namespace {

constexpr const char* kKernels[] = {"eventide_pack_tiles", "eventide_pack_rows"};
// Of either kernel on any architecture, and what does not depend on the machine: 11,136 with NVRTC 13.0.
constexpr int kMaxCodeBytes = 12000;
// Of the compiling thread, which takes 95 to 175 when the machine is not busy: something has exploded.
constexpr double kMaxMilliseconds = 1000;

bool HaveNvrtc() {
  const absl::StatusOr<const Nvrtc*> nvrtc = Nvrtc::Get();
  if (!nvrtc.ok()) Skip(std::string(nvrtc.status().message()));
  return nvrtc.ok();
}

TEST_CASE("the packing kernels are small and compile at once for every generation of GPUs, without a stack") {
  if (!HaveNvrtc()) return;
  const absl::StatusOr<std::vector<HeaderText>> headers = CollectHeaders(kPackerSource);
  REQUIRE(headers.ok());
  for (const GpuArch& arch : GpuArchs()) {
    const absl::StatusOr<Compiled> compiled =
        (*Nvrtc::Get())->Compile(kPackerSource, *headers, arch, kKernels[0]);
    INFO(arch.name << ": " << compiled.status().ToString());
    REQUIRE(compiled.ok());
    for (const char* kernel : kKernels) {
      const absl::StatusOr<KernelUsage> usage = ReadCubinUsage(compiled->cubin, kernel);
      REQUIRE(usage.ok());
      CHECK(usage->stack_bytes == 0);
      CHECK(usage->max_threads == 256);
      CHECK(usage->registers <= 64);
      CHECK(usage->code_bytes <= kMaxCodeBytes);
    }
    CHECK(compiled->usage.spill_bytes == 0);
    std::cout << arch.name << ": packing kernels in " << compiled->cpu_milliseconds << " ms of CPU\n";
    CHECK(compiled->cpu_milliseconds < CompileBudget(kMaxMilliseconds));
  }
}

TEST_CASE("a module built with the packer has its kernels beside the megakernel, from one compile") {
  if (!HaveNvrtc()) return;
  const absl::StatusOr<Program> program = Lower(ToyLayersGraph());
  REQUIRE(program.ok());
  const GpuArch& arch = **ArchByName("sm_90a");
  KernelOptions options;
  options.extra_headers = ToyHeaders();
  options.use_cache = false;
  const absl::StatusOr<Kernel> plain = BuildKernel(*program, arch, options);
  options.packer = true;
  const absl::StatusOr<Kernel> both = BuildKernel(*program, arch, options);
  INFO(plain.status().ToString() << both.status().ToString());
  REQUIRE((plain.ok() && both.ok()));
  for (const char* kernel : kKernels) {
    CHECK(ReadCubinUsage(both->cubin, kernel).ok());
    CHECK_FALSE(ReadCubinUsage(plain->cubin, kernel).ok());
  }
  CHECK(both->usage.registers == plain->usage.registers);
  CHECK(both->usage.stack_bytes == plain->usage.stack_bytes);
  CHECK(both->usage.spill_bytes == plain->usage.spill_bytes);
  CHECK(both->usage.shared_bytes == plain->usage.shared_bytes);
}

}  // namespace
}  // namespace eventide
