#include "jit/driver.h"

#include <dlfcn.h>

namespace eventide {
namespace {

constexpr int kOldestVersion = 12000;  // as DriverGetVersion says it: the first with sm_90a kernels

// What a person can do about the errors that people meet.
const char* Advice(int result) {
  switch (result) {
    case 2:
      return "the GPU's memory is full: use a smaller model, fewer --num-blocks, a smaller "
             "--max-num-batched-tokens or --max-num-seqs, or end other processes on this GPU";
    case 100:
      return "no GPU is visible: check nvidia-smi and CUDA_VISIBLE_DEVICES, or use the CPU";
    case 209:
      return "the kernel was not compiled for this GPU: delete the cubin cache";
    case 222:
    case 803:
      return "the driver is older than the compiler: update the driver, or use an older NVRTC";
    case 700:
    case 719:
      return "a kernel accessed memory it does not own; the process must be restarted. Please "
             "report "
             "this with the command that led to it";
    case 702:
      return "the GPU ends long kernels because it drives a display";
    case 720:
      return "not all workers fit on the GPU at once: use fewer workers, or end other processes on "
             "this GPU";
    case 721:
    case 715:
      return "a kernel failed; the process must be restarted. Please report this with the command "
             "that led to it";
    case 999:
      return "after a driver update the machine may need a restart";
    default:
      return "";
  }
}

}  // namespace

absl::StatusOr<const CudaDriver*> CudaDriver::Get() {
  static const absl::StatusOr<const CudaDriver*> loaded = Load();
  return loaded;
}

absl::StatusOr<const CudaDriver*> CudaDriver::Load() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return absl::NotFoundError(
        "no NVIDIA driver on this machine (libcuda.so.1 cannot be loaded): install it, or use the "
        "CPU");
  }
  auto* driver = new CudaDriver();  // lives as long as the process, like the library
  const char* missing = nullptr;
  const auto resolve = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (function == nullptr && missing == nullptr) missing = name;
  };
  resolve(driver->Init, "cuInit");
  resolve(driver->DriverGetVersion, "cuDriverGetVersion");
  resolve(driver->GetErrorName, "cuGetErrorName");
  resolve(driver->GetErrorString, "cuGetErrorString");
  resolve(driver->DeviceGetCount, "cuDeviceGetCount");
  resolve(driver->DeviceGet, "cuDeviceGet");
  resolve(driver->DeviceGetName, "cuDeviceGetName");
  resolve(driver->DeviceGetAttribute, "cuDeviceGetAttribute");
  resolve(driver->DeviceTotalMem, "cuDeviceTotalMem_v2");
  resolve(driver->PrimaryCtxRetain, "cuDevicePrimaryCtxRetain");
  resolve(driver->PrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2");
  resolve(driver->CtxSetCurrent, "cuCtxSetCurrent");
  resolve(driver->ModuleLoadData, "cuModuleLoadData");
  resolve(driver->ModuleUnload, "cuModuleUnload");
  resolve(driver->ModuleGetFunction, "cuModuleGetFunction");
  resolve(driver->FuncGetAttribute, "cuFuncGetAttribute");
  resolve(driver->FuncSetAttribute, "cuFuncSetAttribute");
  resolve(driver->OccupancyMaxBlocks, "cuOccupancyMaxActiveBlocksPerMultiprocessor");
  resolve(driver->MemGetInfo, "cuMemGetInfo_v2");
  resolve(driver->MemAlloc, "cuMemAlloc_v2");
  resolve(driver->MemFree, "cuMemFree_v2");
  resolve(driver->MemHostAlloc, "cuMemHostAlloc");
  resolve(driver->MemFreeHost, "cuMemFreeHost");
  resolve(driver->MemHostGetDevicePointer, "cuMemHostGetDevicePointer_v2");
  resolve(driver->MemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2");
  resolve(driver->MemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2");
  resolve(driver->MemsetD8Async, "cuMemsetD8Async");
  resolve(driver->StreamCreate, "cuStreamCreate");
  resolve(driver->StreamDestroy, "cuStreamDestroy_v2");
  resolve(driver->StreamSynchronize, "cuStreamSynchronize");
  resolve(driver->EventCreate, "cuEventCreate");
  resolve(driver->EventDestroy, "cuEventDestroy_v2");
  resolve(driver->EventRecord, "cuEventRecord");
  resolve(driver->EventQuery, "cuEventQuery");
  resolve(driver->EventSynchronize, "cuEventSynchronize");
  resolve(driver->EventElapsedTime, "cuEventElapsedTime");
  resolve(driver->LaunchCooperative, "cuLaunchCooperativeKernel");
  resolve(driver->LaunchKernel, "cuLaunchKernel");
  driver->TensorMapEncodeTiled = reinterpret_cast<decltype(driver->TensorMapEncodeTiled)>(
      dlsym(library, "cuTensorMapEncodeTiled"));
  if (missing != nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the NVIDIA driver on this machine is too old: it lacks ", missing, "; update it"));
  }
  RETURN_IF_ERROR(driver->Check(driver->Init(0), "initialising the CUDA driver"));
  RETURN_IF_ERROR(driver->Check(driver->DriverGetVersion(&driver->version_),
                                "asking the CUDA driver for its version"));
  if (driver->version_ < kOldestVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("the NVIDIA driver on this machine is of CUDA ", driver->version_ / 1000, ".",
                     driver->version_ % 1000 / 10, "; Eventide needs ", kOldestVersion / 1000, ".",
                     kOldestVersion % 1000 / 10, " or newer: update it"));
  }
  return driver;
}

absl::Status CudaDriver::Check(int result, absl::string_view what) const {
  if (result == 0) return absl::OkStatus();
  const char* name = nullptr;
  const char* text = nullptr;
  GetErrorName(result, &name);
  GetErrorString(result, &text);
  std::string message =
      absl::StrCat(what, ": ", name == nullptr ? "CUDA error" : name, " (", result, ")",
                   text == nullptr ? "" : ": ", text == nullptr ? "" : text);
  if (const char* advice = Advice(result); *advice != 0) absl::StrAppend(&message, "; ", advice);
  if (result == 2) return absl::ResourceExhaustedError(message);
  if (result == 100) return absl::NotFoundError(message);
  return absl::InternalError(message);
}

int CudaDriver::Attribute(CuDevice device, CuDeviceAttribute attribute) const {
  int value = 0;
  return DeviceGetAttribute(&value, attribute, device) == 0 ? value : 0;
}

}  // namespace eventide
