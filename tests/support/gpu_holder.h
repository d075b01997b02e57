// A GPU that others use: kernels that hold multiprocessors, for a time that always ends, and memory that is gone.
#pragma once

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "jit/nvrtc.h"
#include "runtime/cuda_device.h"
#include "runtime/cuda_memory.h"

namespace eventide {

// words[0] is the host's and ends the kernel early; the others are the blocks', which have begun.
inline constexpr char kHolderSource[] = R"(
extern "C" __global__ void __launch_bounds__(32) hold(unsigned long long ns, volatile unsigned* words) {
  if (threadIdx.x != 0) return;
  unsigned long long begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  words[1 + blockIdx.x] = 1;
  __threadfence_system();
  do {
    asm volatile("nanosleep.u32 2000;");
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - begin < ns && words[0] == 0);
}
)";

inline absl::StatusOr<Compiled> CompileHolder(const GpuArch& arch) {
  ASSIGN_OR_RETURN(const Nvrtc* nvrtc, Nvrtc::Get());
  return nvrtc->Compile(kHolderSource, {}, arch, "hold");
}

class GpuHolder {
 public:
  // On the GPU's context, with a stream of its own. Loads the kernel; holds nothing yet.
  static absl::StatusOr<std::unique_ptr<GpuHolder>> Open() {
    std::unique_ptr<GpuHolder> holder(new GpuHolder());
    CudaDevice& gpu = holder->gpu_;
    RETURN_IF_ERROR(gpu.Open(0));
    RETURN_IF_ERROR(holder->memory_.Open(gpu.driver, gpu.stream));
    ASSIGN_OR_RETURN(const Compiled compiled, CompileHolder(*gpu.arch));
    RETURN_IF_ERROR(gpu.driver->Check(gpu.driver->ModuleLoadData(&holder->module_, compiled.cubin.data()),
                                      "loading the holder"));
    RETURN_IF_ERROR(gpu.driver->Check(
        gpu.driver->ModuleGetFunction(&holder->function_, holder->module_, "hold"), "finding the holder"));
    // All of a multiprocessor's shared memory: one block each, and no room beside it.
    holder->shared_bytes_ = gpu.driver->Attribute(gpu.device, kCuSharedBytesOptIn);
    RETURN_IF_ERROR(gpu.driver->Check(
        gpu.driver->FuncSetAttribute(holder->function_, kCuMaxDynamicShared, holder->shared_bytes_),
        "asking for shared memory"));
    ASSIGN_OR_RETURN(holder->words_, holder->memory_.AllocateMapped(4 + 4 * gpu.multiprocessors));
    return holder;
  }
  ~GpuHolder() {
    if (gpu_.context == nullptr) return;
    gpu_.driver->CtxSetCurrent(gpu_.context);
    if (words_.bytes > 0) Release().IgnoreError();
    if (module_ != nullptr) gpu_.driver->ModuleUnload(module_);
  }

  int multiprocessors() const { return gpu_.multiprocessors; }

  // As many multiprocessors, until Release or for this long. Returns when all of them are held.
  absl::Status Hold(int count, std::chrono::milliseconds most) {
    RETURN_IF_ERROR(gpu_.Enter());
    for (int i = 0; i <= gpu_.multiprocessors; ++i) Words()[i] = 0;
    uint64_t ns = static_cast<uint64_t>(most.count()) * 1'000'000;
    void* parameters[] = {&ns, &words_.address};
    RETURN_IF_ERROR(gpu_.driver->Check(
        gpu_.driver->LaunchKernel(function_, static_cast<unsigned>(count), 1, 1, 32, 1, 1,
                                  static_cast<unsigned>(shared_bytes_), gpu_.stream, parameters, nullptr),
        "launching the holder"));
    const auto start = std::chrono::steady_clock::now();
    for (int block = 0; block < count;) {
      if (Words()[1 + block] != 0) {
        ++block;
      } else if (std::chrono::steady_clock::now() - start > most) {
        return absl::DeadlineExceededError("the holder does not get its multiprocessors");
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
    }
    return absl::OkStatus();
  }
  // Ends it and waits for that.
  absl::Status Release() {
    RETURN_IF_ERROR(gpu_.Enter());
    Words()[0] = 1;
    return gpu_.driver->Check(gpu_.driver->StreamSynchronize(gpu_.stream), "waiting for the holder");
  }

  // Takes memory until no more than this is free; returns what is.
  absl::StatusOr<int64_t> TakeMemory(int64_t leave) {
    RETURN_IF_ERROR(gpu_.Enter());
    for (int tries = 0;; ++tries) {
      size_t free = 0, total = 0;
      RETURN_IF_ERROR(gpu_.driver->Check(gpu_.driver->MemGetInfo(&free, &total), "asking for the GPU's memory"));
      const int64_t surplus = static_cast<int64_t>(free) - leave;
      if (surplus < kLeast || tries == 100) return static_cast<int64_t>(free);
      RETURN_IF_ERROR(memory_.Allocate(std::max(kLeast, surplus / 2), "the holder").status());
    }
  }

 private:
  static constexpr int64_t kLeast = int64_t{64} << 20;

  GpuHolder() = default;
  volatile uint32_t* Words() { return static_cast<volatile uint32_t*>(memory_.Host(words_.address)); }

  CudaDevice gpu_;  // first: closed last
  CudaMemory memory_;
  CuModule module_ = nullptr;
  CuFunction function_ = nullptr;
  Buffer words_;
  int shared_bytes_ = 0;
};

}  // namespace eventide
