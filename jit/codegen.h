// A program as one short C++ source that a person can read: edge maps, extents and targets as
// switches over grids, and one call site per op body. It includes the real headers of device/ and
// ops/; no logic of a kernel lives in a string.
#pragma once

#include <string>

#include "core/program.h"
#include "jit/arch.h"

namespace eventide {

struct CodegenTarget {
  std::string header;  // the port: device/arch/....{cuh,h}
  enum class Entry {
    kCuda,  // extern "C" __global__ eventide_step(ProgramRecord, StepHeader), by value
    kCpu,   // extern "C" void eventide_step(void* worker): all roles of a CpuWorker<kCpuPortable>
  } entry = Entry::kCuda;
  bool timeline = false;  // workers note what they do when (device/timeline.h)
  int stream_floor = 1;   // of the port, in pages (jit/page_floors.h)
};
CodegenTarget TargetOf(const GpuArch& arch, bool timeline = false);

// Pure: equal programs give equal text. The kernel's name is kStepKernel.
std::string Codegen(const Program& program, const CodegenTarget& target);

inline constexpr const char* kStepKernel = "eventide_step";

// "rms_norm" -> "RmsNorm": the struct that ops/rms_norm.h declares.
std::string OpStructName(const std::string& op_name);
// 0 -> "BF16": how ProgramKind::variant is spelled in generated code.
const char* VariantTypeName(int variant);

}  // namespace eventide
