// The one table of devices: which executor `--device` names, and what a packer and a runner must
// know of it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "models/pack.h"
#include "runtime/device_packer.h"
#include "runtime/executor.h"

namespace eventide {

inline constexpr int kSimWorkers = 3;  // of the simulator, where options say 0

struct BackendOptions {
  std::string device = "auto";  // auto, cpu, sim, cuda
  int workers = 0;              // 0: what the device offers
  std::string policy = "auto";
  uint64_t seed = 0;  // of the simulator's schedules
  uint64_t timeout_ns = 10'000'000'000;
  bool time_steps = false;  // Executor::LastStepMs, LastGapMs; hosts always do
  int timeline_tasks = 0;   // ExecutorOptions::timeline_tasks
  PhaseLog* phases = nullptr;
  int sim_pages = 12;  // of a simulated worker; a GPU's block has as many
  // Of the same device, and outlives this one: the steps and copies of both run in the order in which they
  // were submitted.
  const struct Backend* beside = nullptr;
};

struct Backend {
  std::string device;  // cpu, sim or cuda
  std::unique_ptr<Executor> executor;
  FragmentOrder order = nullptr;
  // Whether the oldest step in flight has ended.
  std::function<absl::StatusOr<bool>()> done;
  int64_t cubin_bytes = 0;  // of the kernel; 0 where there is none
  std::string cache_note;   // why the cubin cache could not be used, if so
  // Where weights are packed by the device itself; null where the device's memory is the host's own.
  std::function<absl::StatusOr<std::unique_ptr<DevicePacker>>()> packer;
};

// "auto" to the device it stands for here; an unknown name is an error that lists the names.
absl::StatusOr<std::string> ResolveDevice(const std::string& device);

// Of packed weights, by a resolved device's name.
FragmentOrder FragmentOrderOf(const std::string& device);

// Of this process so far; always 0 where no device compiles.
struct BackendCounts {
  uint64_t compilations = 0;  // runs of a compiler
  uint64_t kernels = 0;       // compiled or taken from the cache
};
BackendCounts CountBackends();

absl::StatusOr<Backend> MakeBackend(Program program, const BackendOptions& options);

}  // namespace eventide
