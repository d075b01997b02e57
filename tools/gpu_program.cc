#include "tools/gpu_program.h"

namespace eventide {

absl::StatusOr<OpenedModel> OpenModelForGpu(EngineFlags flags) {
  flags.device = "cpu";  // none is needed, whatever the flags of the start are
  ASSIGN_OR_RETURN(OpenedModel model, OpenFlaggedModel(flags));
  model.device = "cuda";
  if (flags.dtype == "auto" && model.storage == DType::kF32) model.storage = DType::kBF16;
  if (model.storage == DType::kF32) {
    return UsageError("programs for GPUs are of bfloat16 or float16; float32 is of --device cpu and sim");
  }
  return model;
}

absl::StatusOr<std::vector<const GpuArch*>> ArchsNamed(const std::vector<std::string>& names) {
  std::vector<const GpuArch*> archs;
  for (const std::string& name : names) {
    const absl::StatusOr<const GpuArch*> arch = ArchByName(name);
    if (!arch.ok()) return AsUsageError(arch.status());
    archs.push_back(*arch);
  }
  return archs;
}

}  // namespace eventide
