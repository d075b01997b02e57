// Toy graphs through NVRTC for every architecture: resources, time, and the forms of
// synchronisation.
#include <iostream>
#include <regex>

#include "jit/codegen.h"
#include "jit/kernel.h"
#include "tests/jit/toy_graphs.h"
#include "tests/support/compile_budget.h"

namespace eventide {
namespace {

constexpr double kMaxMilliseconds = 4000;

bool HaveNvrtc() {
  const absl::StatusOr<const Nvrtc*> nvrtc = Nvrtc::Get();
  if (!nvrtc.ok()) Skip(std::string(nvrtc.status().message()));
  return nvrtc.ok();
}

absl::StatusOr<Compiled> CompileToy(const Graph& graph, const GpuArch& arch) {
  ASSIGN_OR_RETURN(const Program program, Lower(graph));
  const std::string source = Codegen(program, TargetOf(arch));
  ASSIGN_OR_RETURN(const std::vector<HeaderText> headers, CollectHeaders(source, ToyHeaders()));
  ASSIGN_OR_RETURN(const Nvrtc* nvrtc, Nvrtc::Get());
  return nvrtc->Compile(source, headers, arch, kStepKernel);
}

size_t Count(const std::string& text, const std::string& pattern) {
  const std::regex regex(pattern);
  return std::distance(std::sregex_iterator(text.begin(), text.end(), regex),
                       std::sregex_iterator());
}

TEST_CASE("toy graphs compile for every architecture without stack and spills") {
  if (!HaveNvrtc()) return;
  for (const GpuArch& arch : GpuArchs()) {
    for (const Graph& graph : {ToyLayersGraph(), ToyCountGraph()}) {
      const absl::StatusOr<Compiled> compiled = CompileToy(graph, arch);
      INFO(arch.name << " " << graph.name() << ": " << compiled.status().ToString());
      REQUIRE(compiled.ok());
      std::cout << arch.name << " " << graph.name() << ": " << compiled->usage.registers
                << " registers, " << compiled->usage.code_bytes << " bytes of code, "
                << compiled->cpu_milliseconds << " of " << compiled->milliseconds << " ms\n";
      CHECK(compiled->usage.stack_bytes == 0);
      CHECK(compiled->usage.spill_bytes == 0);
      CHECK(compiled->usage.registers > 0);
      CHECK(compiled->usage.max_threads > 0);
      CHECK_FALSE(compiled->usage.setmaxnreg_ignored);
      CHECK(compiled->cpu_milliseconds < CompileBudget(kMaxMilliseconds));
    }
  }
}

TEST_CASE("the PTX synchronises through events only, in the forms that were argued for") {
  if (!HaveNvrtc()) return;
  for (const char* name : {"sm_80", "sm_90a", "sm_100a", "sm_120a"}) {
    const absl::StatusOr<Compiled> compiled = CompileToy(ToyCountGraph(), **ArchByName(name));
    INFO(name << ": " << compiled.status().ToString());
    REQUIRE(compiled.ok());
    const std::string& ptx = compiled->ptx;
    CHECK(Count(ptx, "\\.entry ") == 1);
    CHECK(Count(ptx, "red\\.release\\.gpu\\.global\\.add\\.u32") >= 1);  // notify
    CHECK(Count(ptx, "ld\\.acquire\\.gpu\\.global\\.u32") >= 1);         // wait
    CHECK(Count(ptx, "ld\\.global\\.nc") == 0);                          // outside the memory model
    // A grid-wide barrier would need the whole grid's arrivals: cooperative groups' form of it, and
    // cluster barriers, are absent.
    CHECK(Count(ptx, "barrier\\.cluster") == 0);
    CHECK(Count(ptx, "cudaCGGetIntrinsicHandle|cg_sync|__cooperative") == 0);
    CHECK(Count(ptx, "fence\\.(acq_rel|sc)\\.(gpu|sys)|membar\\.(gl|sys)") == 0);
  }
}

TEST_CASE("a kernel is compiled once and then comes from the cache, its report included") {
  if (!HaveNvrtc()) return;
  std::string folder =
      (std::filesystem::temp_directory_path() / "eventide-kernels-XXXXXX").string();
  REQUIRE(::mkdtemp(folder.data()) != nullptr);
  const absl::StatusOr<Program> program = Lower(ToyCountGraph());
  REQUIRE(program.ok());
  KernelOptions options;
  options.extra_headers = ToyHeaders();
  options.cache_folder = folder;
  const GpuArch& arch = **ArchByName("sm_90a");
  const absl::StatusOr<Kernel> cold = BuildKernel(*program, arch, options);
  const absl::StatusOr<Kernel> warm = BuildKernel(*program, arch, options);
  INFO(cold.status().ToString());
  REQUIRE(cold.ok());
  REQUIRE(warm.ok());
  CHECK(cold->compiled);
  CHECK_FALSE(warm->compiled);
  CHECK(cold->cubin == warm->cubin);
  CHECK(cold->usage.registers == warm->usage.registers);
  CHECK(cold->usage.code_bytes == warm->usage.code_bytes);
  CHECK(warm->usage.registers > 0);
  std::cout << "cold " << cold->compile_ms << " ms, cached " << warm->compile_ms << " ms\n";
  // Any change of a header makes another kernel.
  options.extra_headers[0].text += "// changed\n";
  const absl::StatusOr<Kernel> changed = BuildKernel(*program, arch, options);
  REQUIRE(changed.ok());
  CHECK(changed->compiled);
  std::filesystem::remove_all(folder);
}

TEST_CASE("a kernel whose lanes have fewer pages than its port's tiles hold does not compile") {
  if (!HaveNvrtc()) return;
  const absl::StatusOr<Program> program = Lower(ToyCountGraph());
  REQUIRE(program.ok());
  for (const GpuArch& arch : GpuArchs()) {
    CodegenTarget target = TargetOf(arch);
    if (--target.stream_floor < 1) continue;
    const std::string source = Codegen(*program, target);
    const auto headers = CollectHeaders(source, ToyHeaders());
    REQUIRE(headers.ok());
    const absl::Status status = (*Nvrtc::Get())->Compile(source, *headers, arch, kStepKernel).status();
    CAPTURE(arch.name);
    CHECK(status.message().find("lower than what the port's tiles hold") != std::string::npos);
  }
}

TEST_CASE("an error in a kernel comes back with the compiler's words") {
  if (!HaveNvrtc()) return;
  const absl::StatusOr<const Nvrtc*> nvrtc = Nvrtc::Get();
  const absl::Status status =
      (*nvrtc)
          ->Compile("extern \"C\" __global__ void k() { nonsense(); }", {}, GpuArchs()[0], "k")
          .status();
  CHECK_FALSE(status.ok());
  CHECK(std::string(status.message()).find("nonsense") != std::string::npos);
}

TEST_CASE("a spilling kernel is reported as one") {
  if (!HaveNvrtc()) return;
  const absl::StatusOr<const Nvrtc*> nvrtc = Nvrtc::Get();
  const std::string source =
      "extern \"C\" __global__ void __launch_bounds__(1024, 2) k(float* p) {\n"
      "  float a[128];\n"
      "#pragma unroll\n"
      "  for (int i = 0; i < 128; ++i) a[i] = p[threadIdx.x * 128 + i];\n"
      "  __syncthreads();\n"
      "#pragma unroll\n"
      "  for (int i = 0; i < 128; ++i) p[threadIdx.x * 128 + i] = a[127 - i] * a[i];\n"
      "}\n";
  const absl::StatusOr<Compiled> compiled =
      (*nvrtc)->Compile(source, {}, **ArchByName("sm_90a"), "k");
  INFO(compiled.status().ToString());
  REQUIRE(compiled.ok());
  CHECK(compiled->usage.spill_bytes > 0);
  CHECK(compiled->usage.stack_bytes > 0);
}

}  // namespace
}  // namespace eventide
