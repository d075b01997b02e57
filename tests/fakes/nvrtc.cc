// An NVRTC for tests: FAKE_NVRTC is its version, such as "11.8"; it knows no architecture.
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {
constexpr char kLog[] = "nvrtc: error: invalid value for --gpu-architecture (-arch)\n";
int handle;
}  // namespace

extern "C" {

int nvrtcVersion(int* major, int* minor) {
  *major = 13;
  *minor = 0;
  if (const char* text = std::getenv("FAKE_NVRTC")) std::sscanf(text, "%d.%d", major, minor);
  return 0;
}
const char* nvrtcGetErrorString(int) {
  return "NVRTC_ERROR_INVALID_OPTION";
}
int nvrtcCreateProgram(void** program, const char*, const char*, int, const char* const*,
                       const char* const*) {
  *program = &handle;
  return 0;
}
int nvrtcDestroyProgram(void**) {
  return 0;
}
int nvrtcCompileProgram(void*, int, const char* const*) {
  return 5;
}
int nvrtcGetProgramLogSize(void*, size_t* bytes) {
  *bytes = sizeof(kLog);
  return 0;
}
int nvrtcGetProgramLog(void*, char* log) {
  std::memcpy(log, kLog, sizeof(kLog));
  return 0;
}
int nvrtcGetCUBINSize(void*, size_t*) {
  return 1;
}
int nvrtcGetCUBIN(void*, char*) {
  return 1;
}
int nvrtcGetPTXSize(void*, size_t*) {
  return 1;
}
int nvrtcGetPTX(void*, char*) {
  return 1;
}
}
