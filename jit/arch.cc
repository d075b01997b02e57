#include "jit/arch.h"

#include <string>

#include "absl/strings/str_join.h"

namespace eventide {
namespace {

constexpr const char* kCopyByThreads = "device/arch/sm80.cuh";
constexpr const char* kWarpgroups = "device/arch/sm90.cuh";
constexpr const char* kBulkCopy = "device/arch/sm100.cuh";
constexpr const char* kBulkCopyFixedRegisters = "device/arch/sm120.cuh";

// Shared memory: CUDA programming guide, technical specifications per compute capability.
constexpr GpuArch kArchs[] = {
    {"sm_80", 8, 0, 163 * 1024, kCopyByThreads, 2, false, false, false, false, false},
    {"sm_86", 8, 6, 99 * 1024, kCopyByThreads, 2, false, false, false, false, false},
    {"sm_89", 8, 9, 99 * 1024, kCopyByThreads, 2, false, false, false, false, false},
    {"sm_90a", 9, 0, 227 * 1024, kWarpgroups, 3, true, true, true, true, false},
    {"sm_100a", 10, 0, 227 * 1024, kBulkCopy, 3, true, true, false, true, true},
    {"sm_103a", 10, 3, 227 * 1024, kBulkCopy, 3, true, true, false, true, true},
    {"sm_120a", 12, 0, 99 * 1024, kBulkCopyFixedRegisters, 2, true, false, false, false, true},
};

std::string Names() {
  return absl::StrJoin(kArchs, ", ", [](std::string* out, const GpuArch& a) { *out += a.name; });
}

}  // namespace

absl::Span<const GpuArch> GpuArchs() {
  return kArchs;
}

absl::StatusOr<const GpuArch*> ArchFor(int major, int minor) {
  for (const GpuArch& arch : kArchs) {
    if (arch.major == major && arch.minor == minor) return &arch;
  }
  return absl::UnimplementedError(absl::StrCat("no kernels for a GPU of compute capability ", major,
                                               ".", minor, "; supported are ", Names(),
                                               ". Run with --device cpu instead"));
}

absl::StatusOr<const GpuArch*> ArchByName(absl::string_view name) {
  for (const GpuArch& arch : kArchs) {
    if (name == arch.name) return &arch;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown GPU architecture \"", name, "\"; supported are ", Names()));
}

}  // namespace eventide
