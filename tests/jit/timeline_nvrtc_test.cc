// Timelines and measuring kernels through NVRTC: recording is there when asked for and only then.
#include <iostream>

#include "jit/codegen.h"
#include "jit/kernel.h"
#include "models/decoder.h"
#include "models/presets.h"
#include "tests/jit/toy_graphs.h"

namespace eventide {
namespace {

bool HaveNvrtc() {
  const absl::StatusOr<const Nvrtc*> nvrtc = Nvrtc::Get();
  if (!nvrtc.ok()) Skip(std::string(nvrtc.status().message()));
  return nvrtc.ok();
}

int Count(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

absl::StatusOr<Compiled> CompileSource(const std::string& source, const GpuArch& arch,
                                       const char* kernel) {
  ASSIGN_OR_RETURN(const std::vector<HeaderText> headers, CollectHeaders(source, ToyHeaders()));
  ASSIGN_OR_RETURN(const Nvrtc* nvrtc, Nvrtc::Get());
  return nvrtc->Compile(source, headers, arch, kernel);
}

TEST_CASE("a program says that it records only when it was asked to") {
  const absl::StatusOr<Program> program = Lower(ToyLayersGraph());
  REQUIRE(program.ok());
  CodegenTarget target = {"device/arch/cpu.h", CodegenTarget::Entry::kCpu};
  const std::string off = Codegen(*program, target);
  target.timeline = true;
  const std::string on = Codegen(*program, target);
  CHECK(Count(off, "imeline") == 0);
  CHECK(Count(on, "kTimeline = true") == 1);
}

TEST_CASE("recording compiles for every architecture, and reads clocks only when it is on") {
  if (!HaveNvrtc()) return;
  const absl::StatusOr<Program> program = Lower(ToyLayersGraph());
  REQUIRE(program.ok());
  for (const GpuArch& arch : GpuArchs()) {
    CodegenTarget target = TargetOf(arch);
    const auto off = CompileSource(Codegen(*program, target), arch, kStepKernel);
    target.timeline = true;
    const auto on = CompileSource(Codegen(*program, target), arch, kStepKernel);
    INFO(arch.name << ": " << off.status().ToString() << " " << on.status().ToString());
    REQUIRE(off.ok());
    REQUIRE(on.ok());
    std::cout << arch.name << ": " << off->usage.registers << " registers, recording "
              << on->usage.registers << "; cubin " << off->cubin.size() << ", " << on->cubin.size()
              << "\n";
    // The watch's bounded waits look at the clock in any case.
    CHECK(Count(off->ptx, "%globaltimer") <= 2);
    CHECK(Count(on->ptx, "%globaltimer") >= Count(off->ptx, "%globaltimer") + 9);
    CHECK_FALSE(on->usage.setmaxnreg_ignored);
  }
}

TEST_CASE("a whole decoder that records spills nothing") {
  if (!HaveNvrtc()) return;
  DecoderLimits limits;
  limits.num_blocks = 1024;
  const auto decoder = BuildDecoder(*PresetConfig("llama-3.2-1b"), DType::kBF16, limits);
  REQUIRE(decoder.ok());
  const absl::StatusOr<Program> program = Lower(decoder->graph, DecoderVerifyOptions(*decoder));
  REQUIRE(program.ok());
  const GpuArch& arch = **ArchByName("sm_90a");
  const auto on = CompileSource(Codegen(*program, TargetOf(arch, /*timeline=*/true)), arch, kStepKernel);
  INFO(on.status());
  REQUIRE(on.ok());
  std::cout << arch.name << ", recording decoder: " << on->usage.spill_bytes << " bytes spilled, "
            << on->usage.stack_bytes << " of stack, " << on->cpu_milliseconds << " ms of CPU\n";
  // What is recorded shall be the step that runs without it.
  CHECK(on->usage.spill_bytes == 0);
}

TEST_CASE("the measuring kernels compile for every architecture") {
  if (!HaveNvrtc()) return;
  const std::string source = "#include \"device/arch/nvidia_probes.cuh\"\n";
  for (const GpuArch& arch : GpuArchs()) {
    for (const char* kernel :
         {"probe_read", "probe_hop", "probe_ticket", "probe_page", "probe_barrier"}) {
      const auto compiled = CompileSource(source, arch, kernel);
      INFO(arch.name << " " << kernel << ": " << compiled.status().ToString());
      REQUIRE(compiled.ok());
      CHECK(compiled->usage.spill_bytes == 0);
      // Eight loads in flight are what the ceiling rests on.
      CHECK(Count(compiled->ptx, "ld.global.v4.u32") >= 9);
    }
  }
}

}  // namespace
}  // namespace eventide
