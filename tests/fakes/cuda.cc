// A CUDA driver for tests of what goes wrong before anything runs: every function that Eventide
// asks for is there, and FAKE_CUDA, a list such as "version=11040,capability=75,free=64", says how
// this machine is broken. It computes nothing: kernels end at once.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace {

long Setting(const char* name, long otherwise) {
  const char* text = std::getenv("FAKE_CUDA");
  const char* found = text == nullptr ? nullptr : std::strstr(text, name);
  return found == nullptr ? otherwise : std::atol(found + std::strlen(name));
}

int handle;
uint64_t next_address = 1 << 20;

}  // namespace

extern "C" {

int cuInit(unsigned) {
  return static_cast<int>(Setting("init=", 0));
}
int cuDriverGetVersion(int* version) {
  *version = static_cast<int>(Setting("version=", 13000));
  return 0;
}
int cuGetErrorName(int, const char** name) {
  *name = "CUDA_ERROR_OF_THE_FAKE";
  return 0;
}
int cuGetErrorString(int, const char** text) {
  *text = "as the test asked for";
  return 0;
}
int cuDeviceGetCount(int* count) {
  *count = static_cast<int>(Setting("devices=", 1));
  return 0;
}
int cuDeviceGet(int* device, int) {
  *device = 0;
  return 0;
}
int cuDeviceGetName(char* name, int bytes, int) {
  std::strncpy(name, "Fake GPU", static_cast<size_t>(bytes));
  return 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
  const int capability = static_cast<int>(Setting("capability=", 90));
  switch (attribute) {
    case 16:  // multiprocessors
      *value = 4;
      break;
    case 75:
      *value = capability / 10;
      break;
    case 76:
      *value = capability % 10;
      break;
    case 95:
      *value = static_cast<int>(Setting("cooperative=", 1));
      break;
    case 97:
      *value = 227 * 1024;
      break;
    default:
      *value = 1;
  }
  return 0;
}
int cuDeviceTotalMem_v2(size_t* bytes, int) {
  *bytes = size_t{1} << 30;
  return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int) {
  *context = &handle;
  return static_cast<int>(Setting("context=", 0));
}
int cuDevicePrimaryCtxRelease_v2(int) {
  return 0;
}
int cuCtxSetCurrent(void*) {
  return 0;
}
int cuModuleLoadData(void** module, const void*) {
  *module = &handle;
  return static_cast<int>(Setting("load=", 0));
}
int cuModuleUnload(void*) {
  return 0;
}
int cuModuleGetFunction(void** function, void*, const char*) {
  *function = &handle;
  return 0;
}
int cuFuncGetAttribute(int* value, int, void*) {
  *value = 384;
  return 0;
}
int cuFuncSetAttribute(void*, int, int) {
  return 0;
}
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void*, int, size_t) {
  *blocks = static_cast<int>(Setting("resident=", 1));
  return 0;
}
int cuMemGetInfo_v2(size_t* free, size_t* total) {
  *free = static_cast<size_t>(Setting("free=", 1 << 14)) << 20;  // MiB
  *total = size_t{1} << 34;
  return 0;
}
int cuMemAlloc_v2(uint64_t* address, size_t bytes) {
  *address = next_address;
  next_address += bytes + 4096;
  return static_cast<int>(Setting("alloc=", 0));
}
int cuMemFree_v2(uint64_t) {
  return 0;
}
int cuMemHostAlloc(void** memory, size_t bytes, unsigned) {
  *memory = std::calloc(1, bytes);
  return 0;
}
int cuMemFreeHost(void* memory) {
  std::free(memory);
  return 0;
}
int cuMemHostGetDevicePointer_v2(uint64_t* device, void* host, unsigned) {
  *device = reinterpret_cast<uint64_t>(host);
  return 0;
}
int cuMemcpyHtoDAsync_v2(uint64_t, const void*, size_t, void*) {
  return 0;
}
int cuMemcpyDtoHAsync_v2(void*, uint64_t, size_t, void*) {
  return 0;
}
int cuMemsetD8Async(uint64_t, unsigned char, size_t, void*) {
  return 0;
}
int cuStreamCreate(void** stream, unsigned) {
  *stream = &handle;
  return 0;
}
int cuStreamDestroy_v2(void*) {
  return 0;
}
int cuStreamSynchronize(void*) {
  return 0;
}
int cuEventCreate(void** event, unsigned) {
  *event = &handle;
  return 0;
}
int cuEventDestroy_v2(void*) {
  return 0;
}
int cuEventRecord(void*, void*) {
  return 0;
}
int cuEventQuery(void*) {
  return 0;
}
int cuEventSynchronize(void*) {
  return 0;
}
int cuEventElapsedTime(float* milliseconds, void*, void*) {
  *milliseconds = 1;
  return 0;
}
int cuLaunchCooperativeKernel(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                              unsigned, void*, void**) {
  return 0;
}
int cuLaunchKernel(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                   void*, void**, void**) {
  return 0;
}
}
