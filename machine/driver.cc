// The functions of the CUDA driver that Eventide asks for, in front of the machine: with this library as libcuda.so.1 and
// as EVENTIDE_NVRTC (nvrtc.cc) programs run their kernels on the CPU. A launch has ended when its call returns. Settings
// come from PTX_MACHINE, a list such as "workers=4,seed=7,races=0,counts=1".
#include <elf.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>

#include "machine/machine.h"
#include "machine/mark.h"
#include "machine/tensor_map.h"

namespace {

namespace machine = eventide::machine;

constexpr const char* kSettings[] = {"workers", "seed", "races", "counts", "memory", "capability", "slower"};
constexpr int kInvalidValue = 1, kOutOfMemory = 2, kNotFound = 500, kLaunchFailed = 719;

long Setting(const char* name, long otherwise) {
  const char* text = std::getenv("PTX_MACHINE");
  const std::string key = std::string(name) + "=";
  const char* found = text == nullptr ? nullptr : std::strstr(text, key.c_str());
  return found == nullptr ? otherwise : std::atol(found + key.size());
}

struct Module {
  std::shared_ptr<const machine::PtxModule> ptx;
  std::map<std::string, uint64_t> globals;
  std::map<std::string, std::shared_ptr<const machine::Code>> functions;
};

struct Event {
  std::chrono::steady_clock::time_point at;
};

// One device, one caller at a time.
struct Device {
  std::mutex mutex;
  machine::GlobalMemory memory;
  uint64_t launches = 0;
  int failed = 0;  // sticky, as on a GPU
};
Device& TheDevice() {
  static Device device;
  return device;
}
int handle;

// Where an ELF file's last part ends.
size_t ElfBytes(const uint8_t* image) {
  Elf64_Ehdr header;
  std::memcpy(&header, image, sizeof(header));
  size_t end = header.e_shoff + size_t{header.e_shnum} * header.e_shentsize;
  end = std::max<size_t>(end, header.e_phoff + size_t{header.e_phnum} * header.e_phentsize);
  for (int i = 0; i < header.e_shnum; ++i) {
    Elf64_Shdr section;
    std::memcpy(&section, image + header.e_shoff + size_t{sizeof(section)} * static_cast<size_t>(i), sizeof(section));
    if (section.sh_type != SHT_NOBITS) end = std::max<size_t>(end, section.sh_offset + section.sh_size);
  }
  return end;
}

int Allocate(uint64_t* address, size_t bytes) {
  Device& device = TheDevice();
  const std::lock_guard lock(device.mutex);
  const auto limit = static_cast<uint64_t>(Setting("memory", 16)) << 30;
  if (bytes == 0) return kInvalidValue;
  if (device.memory.bytes() + bytes > limit) return kOutOfMemory;
  void* memory = std::aligned_alloc(1024, (bytes + 1023) / 1024 * 1024);
  if (memory == nullptr) return kOutOfMemory;
  *address = reinterpret_cast<uint64_t>(memory);
  device.memory.Add(*address, bytes);
  return 0;
}
int Free(uint64_t address) {
  Device& device = TheDevice();
  const std::lock_guard lock(device.mutex);
  if (!device.memory.Remove(address)) return kInvalidValue;
  std::free(reinterpret_cast<void*>(address));
  return 0;
}
bool Owns(uint64_t address, size_t bytes) {
  return bytes == 0 || TheDevice().memory.Has(address, bytes);
}

int LaunchOn(void* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned shared, void** parameters) {
  Device& device = TheDevice();
  const std::lock_guard lock(device.mutex);
  if (device.failed != 0) return device.failed;
  const auto& code = *static_cast<const std::shared_ptr<const machine::Code>*>(function);
  machine::Launch launch;
  launch.code = code;
  launch.grid[0] = x;
  launch.grid[1] = y;
  launch.grid[2] = z;
  launch.threads = threads;
  launch.dynamic_shared = shared;
  launch.params.resize(code->param_bytes);
  for (size_t i = 0; i < code->params.size(); ++i) {
    std::memcpy(launch.params.data() + code->params[i].first, parameters[i], code->params[i].second);
  }
  machine::Settings settings;
  settings.seed = static_cast<uint64_t>(Setting("seed", 1)) * 1'000'003 + device.launches++;
  settings.races = Setting("races", 1) != 0;
  settings.slower = static_cast<uint32_t>(std::max(1L, Setting("slower", 10)));
  settings.counts = Setting("counts", 0) != 0;
  try {
    machine::Run(launch, &device.memory, settings);
  } catch (const std::exception& fault) {
    std::fprintf(stderr, "PTX machine: launch %llu: %s\n", static_cast<unsigned long long>(device.launches - 1), fault.what());
    device.failed = kLaunchFailed;
  }
  return device.failed;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int cuInit(unsigned) {
  const char* text = std::getenv("PTX_MACHINE");
  std::stringstream settings(text == nullptr ? "" : text);
  for (std::string setting; std::getline(settings, setting, ',');) {
    const size_t equals = setting.find('=');
    const std::string key = setting.substr(0, equals), value = equals == std::string::npos ? "" : setting.substr(equals + 1);
    const bool known = std::find(std::begin(kSettings), std::end(kSettings), key) != std::end(kSettings);
    if (known && !value.empty() && value.find_first_not_of("0123456789") == std::string::npos) continue;
    std::fprintf(stderr, "PTX machine: what is %s in PTX_MACHINE? It takes workers, seed, races, counts, memory, capability and "
                         "slower, each with a number\n", setting.c_str());
    return kInvalidValue;
  }
  return 0;
}
int cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}
int cuGetErrorName(int error, const char** name) {
  *name = error == kLaunchFailed ? "CUDA_ERROR_LAUNCH_FAILED" : error == kOutOfMemory ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR";
  return 0;
}
int cuGetErrorString(int, const char** text) {
  *text = "see what the PTX machine said";
  return 0;
}
int cuDeviceGetCount(int* count) {
  *count = 1;
  return 0;
}
int cuDeviceGet(int* device, int) {
  *device = 0;
  return 0;
}
int cuDeviceGetName(char* name, int bytes, int) {
  std::snprintf(name, static_cast<size_t>(bytes), "PTX machine");
  return 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
  const int capability = static_cast<int>(Setting("capability", 90));
  switch (attribute) {
    case 16: *value = static_cast<int>(Setting("workers", 4)); break;
    case 17: *value = 0; break;
    case 38: *value = 50 << 20; break;
    case 75: *value = capability / 10; break;
    case 76: *value = capability % 10; break;
    case 97: *value = (capability == 86 || capability == 89 || capability >= 120 ? 99 : capability == 80 ? 163 : 227) * 1024; break;
    default: *value = 1;
  }
  return 0;
}
int cuDeviceTotalMem_v2(size_t* bytes, int) {
  *bytes = static_cast<size_t>(Setting("memory", 16)) << 30;
  return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int) {
  *context = &handle;
  return 0;
}
int cuDevicePrimaryCtxRelease_v2(int) { return 0; }
int cuCtxSetCurrent(void*) { return 0; }

int cuModuleLoadData(void** loaded, const void* image) {
  const auto* bytes = static_cast<const char*>(image);
  const char* ptx = bytes + ElfBytes(static_cast<const uint8_t*>(image));
  // The compiler may have padded its file.
  for (int i = 0; i < 4096 && std::memcmp(ptx, machine::kPtxMark, sizeof(machine::kPtxMark) - 1) != 0; ++i) ++ptx;
  if (std::memcmp(ptx, machine::kPtxMark, sizeof(machine::kPtxMark) - 1) != 0) {
    std::fprintf(stderr, "PTX machine: this kernel was compiled without it: set EVENTIDE_NVRTC to its library\n");
    return kInvalidValue;
  }
  auto module = std::make_unique<Module>();
  try {
    module->ptx = std::make_shared<machine::PtxModule>(machine::ParsePtx(ptx));
    for (const machine::PtxVariable& variable : module->ptx->globals) {
      uint64_t address = 0;
      if (const int error = Allocate(&address, std::max<size_t>(1, variable.bytes))) return error;
      std::memset(reinterpret_cast<void*>(address), 0, variable.bytes);
      std::memcpy(reinterpret_cast<void*>(address), variable.data.data(), variable.data.size());
      module->globals[variable.name] = address;
    }
    for (const machine::PtxKernel& kernel : module->ptx->kernels) {
      module->functions[kernel.name] = machine::Decode(module->ptx, kernel, module->globals);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "PTX machine: %s\n", error.what());
    return kInvalidValue;
  }
  *loaded = module.release();
  return 0;
}
int cuModuleUnload(void* loaded) {
  const std::unique_ptr<Module> module(static_cast<Module*>(loaded));
  for (const auto& [name, address] : module->globals) Free(address);
  return 0;
}
int cuModuleGetFunction(void** function, void* loaded, const char* name) {
  auto& functions = static_cast<Module*>(loaded)->functions;
  const auto found = functions.find(name);
  if (found == functions.end()) return kNotFound;
  *function = &found->second;
  return 0;
}
int cuFuncGetAttribute(int* value, int attribute, void* function) {
  const auto& code = *static_cast<const std::shared_ptr<const machine::Code>*>(function);
  *value = attribute == 0 ? code->max_threads : attribute == 1 ? static_cast<int>(code->shared_bytes) : 0;
  return 0;
}
int cuFuncSetAttribute(void*, int, int) { return 0; }
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void*, int, size_t) {
  *blocks = 1;
  return 0;
}
int cuMemGetInfo_v2(size_t* free, size_t* total) {
  *total = static_cast<size_t>(Setting("memory", 16)) << 30;
  *free = *total - TheDevice().memory.bytes();
  return 0;
}
int cuMemAlloc_v2(uint64_t* address, size_t bytes) { return Allocate(address, bytes); }
int cuMemFree_v2(uint64_t address) { return Free(address); }
int cuMemHostAlloc(void** memory, size_t bytes, unsigned) {
  uint64_t address = 0;
  const int error = Allocate(&address, bytes);
  *memory = reinterpret_cast<void*>(address);
  return error;
}
int cuMemFreeHost(void* memory) { return Free(reinterpret_cast<uint64_t>(memory)); }
int cuMemHostGetDevicePointer_v2(uint64_t* device, void* host, unsigned) {
  *device = reinterpret_cast<uint64_t>(host);
  return 0;
}
int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, void*) {
  if (!Owns(to, bytes)) return kInvalidValue;
  std::memcpy(reinterpret_cast<void*>(to), from, bytes);
  return TheDevice().failed;
}
int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, void*) {
  if (!Owns(from, bytes)) return kInvalidValue;
  std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
  return TheDevice().failed;
}
int cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, void*) {
  if (!Owns(to, bytes)) return kInvalidValue;
  std::memset(reinterpret_cast<void*>(to), value, bytes);
  return TheDevice().failed;
}
int cuStreamCreate(void** stream, unsigned) {
  *stream = &handle;
  return 0;
}
int cuStreamDestroy_v2(void*) { return 0; }
int cuStreamSynchronize(void*) { return TheDevice().failed; }
int cuEventCreate(void** event, unsigned) {
  *event = new Event();
  return 0;
}
int cuEventDestroy_v2(void* event) {
  delete static_cast<Event*>(event);
  return 0;
}
int cuEventRecord(void* event, void*) {
  static_cast<Event*>(event)->at = std::chrono::steady_clock::now();
  return 0;
}
int cuEventQuery(void*) { return TheDevice().failed; }
int cuEventSynchronize(void*) { return TheDevice().failed; }
int cuEventElapsedTime(float* milliseconds, void* from, void* to) {
  *milliseconds = std::chrono::duration<float, std::milli>(static_cast<Event*>(to)->at - static_cast<Event*>(from)->at).count();
  return 0;
}
int cuLaunchCooperativeKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned, unsigned,
                              unsigned shared, void*, void** parameters) {
  return LaunchOn(function, x, y, z, threads, shared, parameters);
}
int cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned, unsigned, unsigned shared,
                   void*, void** parameters, void**) {
  return LaunchOn(function, x, y, z, threads, shared, parameters);
}
int cuTensorMapEncodeTiled(void* map, int type, uint32_t rank, void* address, const uint64_t* dims, const uint64_t* strides,
                           const uint32_t* box, const uint32_t* steps, int interleave, int swizzle, int, int fill) {
  constexpr int kUint64 = 4;
  if (type != kUint64 || rank != 5 || interleave != 0 || swizzle != 0 || fill != 0) return kInvalidValue;
  machine::TensorMap made = {};
  made.magic = machine::kTensorMapMagic;
  made.address = reinterpret_cast<uint64_t>(address);
  made.element_bytes = 8;
  made.rank = rank;
  if (made.address % 16 != 0) return kInvalidValue;
  for (uint32_t i = 0; i < rank; ++i) {
    made.dims[i] = dims[i];
    made.strides[i] = i == 0 ? 8 : strides[i - 1];
    made.box[i] = box[i];
    const bool fine = dims[i] > 0 && dims[i] <= uint64_t{1} << 32 && made.strides[i] % (i == 0 ? 8 : 16) == 0 && box[i] > 0 &&
                      box[i] <= 256 && steps[i] == 1;
    if (!fine) return kInvalidValue;
  }
  std::memcpy(map, &made, sizeof(made));
  return 0;
}
}
