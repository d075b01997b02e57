// NVRTC for the machine: the compiler itself, but what it compiles also carries its PTX and says where in the source each
// instruction is from.
#include <dlfcn.h>
#include <glob.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "machine/mark.h"

namespace {

using eventide::machine::kPtxMark;

// The compiler that this library stands in front of.
void* RealNvrtc() {
  static void* library = [] {
    const char* chosen = std::getenv("PTX_MACHINE_NVRTC");
    if (chosen != nullptr && *chosen != 0) return dlopen(chosen, RTLD_NOW | RTLD_LOCAL);
    for (const char* pattern :
         {"/usr/local/cuda*/lib64/libnvrtc.so.1[23]", "/usr/*/lib/python3*/*-packages/nvidia/*/lib/libnvrtc.so.1[23]",
          "/usr/lib/python3*/*-packages/nvidia/*/lib/libnvrtc.so.1[23]"}) {
      glob_t found;
      void* opened = nullptr;
      if (glob(pattern, 0, nullptr, &found) == 0) opened = dlopen(found.gl_pathv[found.gl_pathc - 1], RTLD_NOW | RTLD_LOCAL);
      globfree(&found);
      if (opened != nullptr) return opened;
    }
    return dlopen("libnvrtc.so.13", RTLD_NOW | RTLD_LOCAL);
  }();
  return library;
}
template <class F>
F* Real(const char* name) {
  void* library = RealNvrtc();
  void* found = library == nullptr ? nullptr : dlsym(library, name);
  if (found == nullptr) {
    std::fprintf(stderr, "PTX machine: NVRTC cannot be loaded, or it lacks %s: set EVENTIDE_NVRTC to another\n", name);
    std::exit(1);
  }
  return reinterpret_cast<F*>(found);
}

// Here a poll takes as long as a task does on a GPU: waits that do something else every so many polls do it sooner.
std::string& Impatient(std::string& header) {
  for (const char* constant : {"kPollsPerCheck = ", "kPollsPerWatch = "}) {
    const size_t at = header.find(constant);
    if (at == std::string::npos || header.compare(at - 4, 4, "u32 ") != 0) continue;
    const size_t digits = at + std::strlen(constant);
    header.replace(digits, header.find(';', digits) - digits, "4");
  }
  return header;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int nvrtcVersion(int* major, int* minor) { return Real<int(int*, int*)>("nvrtcVersion")(major, minor); }
const char* nvrtcGetErrorString(int error) { return Real<const char*(int)>("nvrtcGetErrorString")(error); }
int nvrtcCreateProgram(void** program, const char* source, const char* name, int count, const char* const* headers,
                       const char* const* names) {
  std::vector<std::string> texts(headers, headers + count);
  std::vector<const char*> all;
  for (std::string& text : texts) all.push_back(Impatient(text).c_str());
  return Real<int(void**, const char*, const char*, int, const char* const*, const char* const*)>("nvrtcCreateProgram")(
      program, source, name, count, all.data(), names);
}
int nvrtcDestroyProgram(void** program) { return Real<int(void**)>("nvrtcDestroyProgram")(program); }
int nvrtcCompileProgram(void* program, int count, const char* const* options) {
  std::vector<const char*> all(options, options + count);
  all.push_back("--generate-line-info");
  return Real<int(void*, int, const char* const*)>("nvrtcCompileProgram")(program, count + 1, all.data());
}
int nvrtcGetProgramLogSize(void* program, size_t* bytes) { return Real<int(void*, size_t*)>("nvrtcGetProgramLogSize")(program, bytes); }
int nvrtcGetProgramLog(void* program, char* log) { return Real<int(void*, char*)>("nvrtcGetProgramLog")(program, log); }
int nvrtcGetPTXSize(void* program, size_t* bytes) { return Real<int(void*, size_t*)>("nvrtcGetPTXSize")(program, bytes); }
int nvrtcGetPTX(void* program, char* ptx) { return Real<int(void*, char*)>("nvrtcGetPTX")(program, ptx); }
int nvrtcGetCUBINSize(void* program, size_t* bytes) {
  size_t ptx = 0;
  int error = Real<int(void*, size_t*)>("nvrtcGetCUBINSize")(program, bytes);
  if (error == 0) error = nvrtcGetPTXSize(program, &ptx);
  *bytes += sizeof(kPtxMark) - 1 + ptx;
  return error;
}
int nvrtcGetCUBIN(void* program, char* cubin) {
  size_t bytes = 0;
  int error = Real<int(void*, size_t*)>("nvrtcGetCUBINSize")(program, &bytes);
  if (error == 0) error = Real<int(void*, char*)>("nvrtcGetCUBIN")(program, cubin);
  std::memcpy(cubin + bytes, kPtxMark, sizeof(kPtxMark) - 1);
  if (error == 0) error = nvrtcGetPTX(program, cubin + bytes + sizeof(kPtxMark) - 1);
  return error;
}
}
