// Every op of ops/ in one megakernel, for every generation of GPUs: no stack, no spills. Ops that are compiled
// for a model's parameters are looked at in models' kernels (ptx_lint_nvrtc_test.cc): here they have none, and
// their code is another. Ops are found in the embedded headers, so a new one is covered
// when it exists.
#include <algorithm>
#include <iostream>
#include <list>
#include <regex>

#include "device/dtype.h"
#include "jit/codegen.h"
#include "jit/kernel.h"
#include "jit/nvrtc.h"
#include "tests/support/test.h"

namespace eventide {
namespace {

// The names in `OpInfo kInfo = {"name"` of ops/<name>.h, but for ops with constant parameters.
std::vector<std::string> OpNames() {
  std::vector<std::string> names;
  const std::regex info("OpInfo kInfo = \\{\\s*\"([a-z0-9_]+)\"");
  for (const EmbeddedSource* source = kEmbeddedSources; source->name != nullptr; ++source) {
    if (std::string(source->name).rfind("ops/", 0) != 0) continue;
    std::cmatch match;
    if (!std::regex_search(source->text, match, info)) continue;
    const std::string name = match[1];
    if (std::string(source->text).find("constant_params=*/true") != std::string::npos) continue;
    INFO("an op's header is named after it");
    CHECK(std::string(source->name) == "ops/" + name + ".h");
    names.push_back(name);
  }
  return names;
}

// One grid of one task per op; never run, so there are neither operands nor events.
Program ProgramOf(const std::vector<std::string>& ops, int variant, std::list<OpInfo>& infos) {
  Program program;
  program.name = "ops";
  program.sections.push_back({"main", 1, 0, static_cast<int>(ops.size())});
  for (const std::string& op : ops) {
    OpInfo info = {op.c_str(), 0, {}};
    infos.push_back(info);
    ProgramGrid grid;
    grid.name = op;
    grid.op = &infos.back();
    grid.variant = variant;
    grid.kind = grid.node = static_cast<int>(program.kinds.size());
    grid.extents = {Expr(1)};
    program.kinds.push_back({grid.op, variant});
    program.grids.push_back(std::move(grid));
  }
  return program;
}

absl::StatusOr<Compiled> CompileOps(const std::vector<std::string>& ops, int variant,
                                    const GpuArch& arch) {
  std::list<OpInfo> infos;
  const std::string source = Codegen(ProgramOf(ops, variant, infos), TargetOf(arch));
  ASSIGN_OR_RETURN(const std::vector<HeaderText> headers, CollectHeaders(source));
  ASSIGN_OR_RETURN(const Nvrtc* nvrtc, Nvrtc::Get());
  return nvrtc->Compile(source, headers, arch, kStepKernel);
}

void CheckOps(const std::vector<std::string>& ops, int variant, const char* arch_name) {
  absl::StatusOr<Compiled> compiled = CompileOps(ops, variant, **ArchByName(arch_name));
  INFO(arch_name << ", " << VariantTypeName(variant) << ", " << ops.size() << " ops from " << ops[0]
                 << ": " << compiled.status().ToString());
  REQUIRE(compiled.ok());
  const KernelUsage& usage = compiled->usage;
  std::cout << arch_name << " " << VariantTypeName(variant) << ", " << ops.size() << " ops ("
            << ops[0] << "..): " << usage.registers << " registers, " << usage.stack_bytes
            << " bytes of stack, " << compiled->cubin.size() << " bytes, "
            << compiled->cpu_milliseconds << " ms of CPU\n";
  CHECK(usage.stack_bytes == 0);
  CHECK(usage.spill_bytes == 0);
  CHECK_FALSE(usage.setmaxnreg_ignored);
  CHECK(compiled->ptx.find("ld.global.nc") == std::string::npos);
}

bool HaveNvrtc() {
  const absl::StatusOr<const Nvrtc*> nvrtc = Nvrtc::Get();
  if (!nvrtc.ok()) Skip(std::string(nvrtc.status().message()));
  return nvrtc.ok();
}

TEST_CASE("all ops in one kernel compile for every generation of GPUs without stack and spills") {
  if (!HaveNvrtc()) return;
  std::vector<std::string> ops = OpNames();
  // No model has the checksums that random graphs are made of (ops/page_sum.h).
  for (const char* checksum : {"page_sum1", "page_sum2", "publish_count"}) {
    REQUIRE(std::count(ops.begin(), ops.end(), checksum) == 1);
    ops.erase(std::find(ops.begin(), ops.end(), checksum));
  }
  REQUIRE(ops.size() >= 5);
  for (const char* arch : {"sm_80", "sm_90a", "sm_100a", "sm_120a"}) CheckOps(ops, 0, arch);
}

TEST_CASE("all ops compile for float16 storage") {
  if (!HaveNvrtc()) return;
  CheckOps(OpNames(), Storage<F16>::kVariant, "sm_90a");
}

TEST_CASE("a kernel of float32 storage is refused before anything is compiled") {
  std::list<OpInfo> infos;
  const Program program = ProgramOf({"linear"}, Storage<float>::kVariant, infos);
  KernelOptions options;
  options.use_cache = false;
  const absl::StatusOr<Kernel> kernel = BuildKernel(program, **ArchByName("sm_90a"), options);
  REQUIRE_FALSE(kernel.ok());
  CHECK(kernel.status().code() == absl::StatusCode::kInvalidArgument);
  const std::string message(kernel.status().message());
  INFO(message);
  CHECK(message.find("linear") != std::string::npos);
  CHECK(message.find("float32") != std::string::npos);
  CHECK(message.find("bfloat16 or float16") != std::string::npos);
}

TEST_CASE("each op compiles alone without stack and spills") {
  if (!HaveNvrtc()) return;
  for (const std::string& op : OpNames()) CheckOps({op}, 0, "sm_90a");
}

}  // namespace
}  // namespace eventide
