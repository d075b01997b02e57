// The CUDA driver calls Eventide uses, loaded when first needed, with results as absl::Status. One
// binary starts on machines with and without a GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/status.h"

namespace eventide {

// Opaque handles and numbers of cuda.h, as documented by NVIDIA.
using CuDevice = int;
using CuContext = struct CUctx_st*;
using CuModule = struct CUmod_st*;
using CuFunction = struct CUfunc_st*;
using CuStream = struct CUstream_st*;
using CuEvent = struct CUevent_st*;
using CuPointer = uint64_t;

enum CuDeviceAttribute : int {
  kCuMultiprocessors = 16,
  kCuKernelTimeout = 17,
  kCuL2Bytes = 38,
  kCuMajor = 75,
  kCuMinor = 76,
  kCuCooperativeLaunch = 95,
  kCuSharedBytesOptIn = 97,
};
enum CuFunctionAttribute : int {
  kCuMaxThreads = 0,
  kCuSharedBytes = 1,
  kCuLocalBytes = 3,
  kCuRegisters = 4,
  kCuMaxDynamicShared = 8,
};
inline constexpr int kCuNotReady = 600;
inline constexpr unsigned kCuEventNoTiming = 2;
inline constexpr unsigned kCuStreamNonBlocking = 1;
inline constexpr unsigned kCuHostMapped = 2;

class CudaDriver {
 public:
  // Loads libcuda and initialises it. The error says what is missing.
  static absl::StatusOr<const CudaDriver*> Get();

  // Ok for 0; otherwise "`what`: CUDA_ERROR_..., and what to do".
  absl::Status Check(int result, absl::string_view what) const;
  int Attribute(CuDevice device, CuDeviceAttribute attribute) const;
  int version() const { return version_; }  // 13000 for 13.0

  // Named after the driver's functions.
  int (*Init)(unsigned flags);
  int (*DriverGetVersion)(int*);
  int (*GetErrorName)(int, const char**);
  int (*GetErrorString)(int, const char**);
  int (*DeviceGetCount)(int*);
  int (*DeviceGet)(CuDevice*, int ordinal);
  int (*DeviceGetName)(char*, int bytes, CuDevice);
  int (*DeviceGetAttribute)(int*, int attribute, CuDevice);
  int (*DeviceTotalMem)(size_t*, CuDevice);
  int (*PrimaryCtxRetain)(CuContext*, CuDevice);
  int (*PrimaryCtxRelease)(CuDevice);
  int (*CtxSetCurrent)(CuContext);
  int (*ModuleLoadData)(CuModule*, const void* image);
  int (*ModuleUnload)(CuModule);
  int (*ModuleGetFunction)(CuFunction*, CuModule, const char* name);
  int (*FuncGetAttribute)(int*, int attribute, CuFunction);
  int (*FuncSetAttribute)(CuFunction, int attribute, int value);
  int (*OccupancyMaxBlocks)(int* blocks, CuFunction, int threads, size_t dynamic_shared);
  int (*MemGetInfo)(size_t* free, size_t* total);
  int (*MemAlloc)(CuPointer*, size_t);
  int (*MemFree)(CuPointer);
  int (*MemHostAlloc)(void**, size_t, unsigned flags);
  int (*MemFreeHost)(void*);
  int (*MemHostGetDevicePointer)(CuPointer*, void*, unsigned flags);
  int (*MemcpyHtoDAsync)(CuPointer to, const void* from, size_t, CuStream);
  int (*MemcpyDtoHAsync)(void* to, CuPointer from, size_t, CuStream);
  int (*MemsetD8Async)(CuPointer, unsigned char, size_t, CuStream);
  int (*StreamCreate)(CuStream*, unsigned flags);
  int (*StreamDestroy)(CuStream);
  int (*StreamSynchronize)(CuStream);
  int (*EventCreate)(CuEvent*, unsigned flags);
  int (*EventDestroy)(CuEvent);
  int (*EventRecord)(CuEvent, CuStream);
  int (*EventQuery)(CuEvent);
  int (*EventSynchronize)(CuEvent);
  int (*EventElapsedTime)(float* milliseconds, CuEvent from, CuEvent to);
  int (*LaunchCooperative)(CuFunction, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                           unsigned block_x, unsigned block_y, unsigned block_z,
                           unsigned dynamic_shared, CuStream, void** parameters);
  int (*LaunchKernel)(CuFunction, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                      unsigned block_x, unsigned block_y, unsigned block_z, unsigned dynamic_shared,
                      CuStream, void** parameters, void** extra);
  // Only drivers that know sm_90 have it: null in others.
  int (*TensorMapEncodeTiled)(void* map, int type, uint32_t rank, void* address, const uint64_t* dims,
                              const uint64_t* strides, const uint32_t* box, const uint32_t* steps,
                              int interleave, int swizzle, int l2_promotion, int fill);

 private:
  CudaDriver() = default;
  static absl::StatusOr<const CudaDriver*> Load();
  int version_ = 0;
};

}  // namespace eventide
