#include "jit/nvrtc.h"

#include <dlfcn.h>
#include <glob.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "jit/cubin.h"

namespace eventide {

// The part of nvrtc.h that is used, as documented by NVIDIA; stable since CUDA 11.
struct Nvrtc::Functions {
  using Program = void*;
  int (*Version)(int* major, int* minor);
  const char* (*GetErrorString)(int result);
  int (*CreateProgram)(Program*, const char* source, const char* name, int header_count,
                       const char* const* headers, const char* const* header_names);
  int (*DestroyProgram)(Program*);
  int (*CompileProgram)(Program, int option_count, const char* const* options);
  int (*GetProgramLogSize)(Program, size_t*);
  int (*GetProgramLog)(Program, char*);
  int (*GetCUBINSize)(Program, size_t*);
  int (*GetCUBIN)(Program, char*);
  int (*GetPTXSize)(Program, size_t*);
  int (*GetPTX)(Program, char*);
};

namespace {

std::atomic<uint64_t> runs{0};  // a statistic: no order needed

constexpr int kOldestMajor = 12;  // C++20, and architectures with "a" suffix
constexpr const char* kInstallHint =
    "install NVRTC, for example with `pip install nvidia-cuda-nvrtc`, or with the CUDA toolkit "
    "12.4 or "
    "later, or set EVENTIDE_NVRTC to the path of libnvrtc.so";

template <class F>
bool Resolve(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(dlsym(library, name));
  return function != nullptr;
}

std::string ResolveAll(void* library, Nvrtc::Functions& f) {
  const char* missing = nullptr;
  const auto resolve = [&](const char* name, auto& function) {
    if (!Resolve(library, name, function) && missing == nullptr) missing = name;
  };
  resolve("nvrtcVersion", f.Version);
  resolve("nvrtcGetErrorString", f.GetErrorString);
  resolve("nvrtcCreateProgram", f.CreateProgram);
  resolve("nvrtcDestroyProgram", f.DestroyProgram);
  resolve("nvrtcCompileProgram", f.CompileProgram);
  resolve("nvrtcGetProgramLogSize", f.GetProgramLogSize);
  resolve("nvrtcGetProgramLog", f.GetProgramLog);
  resolve("nvrtcGetCUBINSize", f.GetCUBINSize);
  resolve("nvrtcGetCUBIN", f.GetCUBIN);
  resolve("nvrtcGetPTXSize", f.GetPTXSize);
  resolve("nvrtcGetPTX", f.GetPTX);
  return missing == nullptr ? "" : missing;
}

// Owns a program for the time of one compilation.
struct ProgramHandle {
  explicit ProgramHandle(const Nvrtc::Functions& functions) : f(functions) {}
  ProgramHandle(const ProgramHandle&) = delete;
  ~ProgramHandle() {
    if (program != nullptr) f.DestroyProgram(&program);
  }
  // The text a pair of size and content functions give.
  std::string Read(int (*size)(void*, size_t*), int (*content)(void*, char*)) const {
    size_t bytes = 0;
    if (size(program, &bytes) != 0 || bytes == 0) return "";
    std::string text(bytes, '\0');
    if (content(program, text.data()) != 0) return "";
    return text;
  }
  const Nvrtc::Functions& f;
  void* program = nullptr;
};

double ThreadMilliseconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return 1e3 * static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec);
}

std::string WithoutFinalZero(std::string text) {
  while (!text.empty() && text.back() == '\0') text.pop_back();
  return text;
}

}  // namespace

std::vector<std::string> NvrtcCandidates() {
  std::vector<std::string> paths = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};
  std::vector<std::string> patterns = {"/usr/local/cuda/lib64/libnvrtc.so.1[23]",
                                       "/usr/local/cuda-1*/lib64/libnvrtc.so.1[23]"};
  std::vector<std::string> roots = {"/usr/lib/python3*", "/usr/local/lib/python3*",
                                    "/opt/*/lib/python3*"};
  if (const char* home = std::getenv("HOME"))
    roots.push_back(absl::StrCat(home, "/.local/lib/python3*"));
  if (const char* env = std::getenv("VIRTUAL_ENV"))
    roots.push_back(absl::StrCat(env, "/lib/python3*"));
  for (const std::string& root : roots) {
    for (const char* packages : {"/site-packages", "/dist-packages"}) {
      for (const char* folder : {"/nvidia/cu1[23]/lib", "/nvidia/cuda_nvrtc/lib"}) {
        patterns.push_back(absl::StrCat(root, packages, folder, "/libnvrtc.so.1[23]"));
      }
    }
  }
  for (const std::string& pattern : patterns) {
    glob_t found;
    if (glob(pattern.c_str(), 0, nullptr, &found) == 0) {
      // Highest version first: names differ in digits only.
      for (size_t i = found.gl_pathc; i > 0; --i) paths.push_back(found.gl_pathv[i - 1]);
    }
    globfree(&found);
  }
  return paths;
}

absl::StatusOr<const Nvrtc*> Nvrtc::Get() {
  static const absl::StatusOr<const Nvrtc*> loaded = Load();
  return loaded;
}

absl::StatusOr<const Nvrtc*> Nvrtc::Load() {
  const char* chosen = std::getenv("EVENTIDE_NVRTC");
  const std::vector<std::string> candidates =
      chosen != nullptr ? std::vector<std::string>{chosen} : NvrtcCandidates();
  void* library = nullptr;
  std::string path, last_error;
  for (const std::string& candidate : candidates) {
    library = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL);
    path = candidate;
    if (library != nullptr) break;
    if (const char* error = dlerror()) last_error = error;
  }
  if (library == nullptr) {
    if (chosen != nullptr) {
      return absl::NotFoundError(absl::StrCat("EVENTIDE_NVRTC: cannot load ", chosen, ": ",
                                              last_error, "; ", kInstallHint));
    }
    return absl::NotFoundError(absl::StrCat(
        "no NVRTC found, which compiles kernels: ", kInstallHint, " (", last_error, ")"));
  }
  auto functions = std::make_shared<Functions>();
  if (const std::string missing = ResolveAll(library, *functions); !missing.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is not a usable NVRTC: it lacks ", missing, "; ", kInstallHint));
  }
  auto* nvrtc = new Nvrtc();  // lives as long as the process, like the library
  functions->Version(&nvrtc->major_, &nvrtc->minor_);
  if (nvrtc->major_ < kOldestMajor) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is NVRTC ", nvrtc->major_, ".",
                                                      nvrtc->minor_, ", which is too old; ",
                                                      kInstallHint));
  }
  nvrtc->functions_ = functions;
  nvrtc->path_ = path;
  nvrtc->has_no_cache_ = nvrtc->major_ > 12 || nvrtc->minor_ >= 9;
  return nvrtc;
}

uint64_t Nvrtc::Runs() {
  return runs.load(std::memory_order_relaxed);
}

std::vector<std::string> Nvrtc::Options(const GpuArch& arch) const {
  std::vector<std::string> options = {absl::StrCat("--gpu-architecture=", arch.name), "--std=c++20",
                                      "--device-as-default-execution-space",
                                      // Bits are a promise: fma only where the source says so.
                                      "--fmad=false", "--ptxas-options=-v"};
  // NVRTC's own cache returns an empty log; Eventide has a cache of its own (jit/cache.h).
  if (has_no_cache_) options.push_back("--no-cache");
  return options;
}

absl::StatusOr<Compiled> Nvrtc::Compile(const std::string& source,
                                        const std::vector<HeaderText>& headers, const GpuArch& arch,
                                        const std::string& kernel) const {
  const auto start = std::chrono::steady_clock::now();
  const double cpu_start = ThreadMilliseconds();
  std::vector<const char*> texts, names, options;
  for (const HeaderText& header : headers) {
    texts.push_back(header.text.c_str());
    names.push_back(header.name.c_str());
  }
  const std::vector<std::string> option_texts = Options(arch);
  for (const std::string& option : option_texts) options.push_back(option.c_str());

  ProgramHandle handle(*functions_);
  const auto check = [&](int result, const char* what) -> absl::Status {
    if (result == 0) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("NVRTC ", major_, ".", minor_, " (", path_, "): ", what,
                                            " failed: ", functions_->GetErrorString(result)));
  };
  RETURN_IF_ERROR(
      check(functions_->CreateProgram(&handle.program, source.c_str(), "megakernel.cu",
                                      static_cast<int>(texts.size()), texts.data(), names.data()),
            "creating a program"));
  runs.fetch_add(1, std::memory_order_relaxed);
  const int result =
      functions_->CompileProgram(handle.program, static_cast<int>(options.size()), options.data());
  Compiled compiled;
  compiled.log =
      WithoutFinalZero(handle.Read(functions_->GetProgramLogSize, functions_->GetProgramLog));
  if (result != 0) {
    absl::Status status = check(result, absl::StrCat("compiling for ", arch.name).c_str());
    if (absl::StrContains(compiled.log, "--gpu-architecture")) {
      return absl::FailedPreconditionError(absl::StrCat(
          status.message(), "; it does not know this GPU: a newer one is needed; ", kInstallHint));
    }
    return absl::Status(status.code(), absl::StrCat(status.message(), "\n", compiled.log));
  }
  compiled.cubin = handle.Read(functions_->GetCUBINSize, functions_->GetCUBIN);
  compiled.ptx = WithoutFinalZero(handle.Read(functions_->GetPTXSize, functions_->GetPTX));
  ASSIGN_OR_RETURN(compiled.usage, ReadCubinUsage(compiled.cubin, kernel));
  RETURN_IF_ERROR(ReadAssemblerLog(compiled.log, kernel, compiled.usage));
  compiled.milliseconds =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  compiled.cpu_milliseconds = ThreadMilliseconds() - cpu_start;
  return compiled;
}

}  // namespace eventide
