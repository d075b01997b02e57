// The simulator's scheduler: fibres that switch at every atomic access, chosen by a seed; pending
// copies that end when the seed says; sleep on an address until it is written. When nobody can run
// and no copy is pending, that is a deadlock, and every fibre says what it waits for.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "device/arch/sim.h"
#include "runtime/fibre.h"

namespace eventide {

// How the next fibre is chosen; a seed picks one of them for a run.
enum class SimStrategy {
  kUniform,     // any runnable fibre or pending copy
  kSticky,      // mostly the same fibre again
  kLazyCopies,  // copies end only when they must, or rarely
  kPriorities,  // the fibre with the highest priority; now and then one priority is drawn again
};
inline constexpr int kSimStrategies = 4;

struct SimTrace {
  uint64_t hash = 0;      // of every choice: equal seeds give equal hashes
  uint64_t switches = 0;  // virtual time
  uint64_t copies = 0;
};

class SimWorld {
 public:
  enum class End { kFinished, kDeadlock, kTooLong, kFailed };

  // Before a run. `bodies` fibres are started, in worker-major order.
  void Start(uint64_t seed, uint64_t most_switches);
  void Add(SimWorker* worker, void (*body)(void*), void* argument);
  End Run();

  const SimTrace& trace() const { return trace_; }
  struct Waiting {
    const SimWorker* worker;
    SimWait wait;
    bool done;
  };
  std::vector<Waiting> Fibres() const;  // who waits for what, after a deadlock
  const SimWorker* failed_worker() const { return slots_[current_].worker; }
  const std::string& failure() const { return failure_; }

  // --- for the running fibre (the free functions of device/arch/sim.h)
  // ------------------------------------
  void Yield() {
    if (++trace_.switches > most_switches_) Leave(End::kTooLong);
    Go(Pick());
  }
  void Changed(const void* address);
  uint64_t version() const { return version_; }
  void Block(uint64_t version, const void* address, const SimWait& wait);
  void Issue(const SimCopy& copy) { copies_.push_back(copy); }
  bool Coin() { return (Random() & 1) != 0; }
  [[noreturn]] void Fail(const char* what);

 private:
  struct Slot {
    std::unique_ptr<Fibre> fibre;
    SimWorker* worker = nullptr;
    void (*body)(void*) = nullptr;
    void* argument = nullptr;
    const void* address = nullptr;
    SimWait wait = {};
    uint32_t priority = 0;
    bool done = false;
  };

  static void Main(void* world);
  uint64_t Random() {  // splitmix64
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  uint32_t Below(size_t n) { return static_cast<uint32_t>((Random() >> 32) * n >> 32); }
  int Pick();  // ends copies until a fibre is chosen; may not return
  int Prefer(size_t runnable);
  void EndCopy(size_t index);
  void Go(int next);
  void Leave(End end);  // back to Run
  void Note(uint64_t choice) { trace_.hash = (trace_.hash ^ (choice + 1)) * 0x100000001b3u; }

  std::vector<Slot> slots_;  // stacks are kept between runs
  size_t used_ = 0;
  std::vector<int> runnable_, blocked_;
  std::vector<SimCopy> copies_;
  FibrePoint own_;
  int current_ = -1;
  uint64_t version_ = 0, state_ = 0, most_switches_ = 0;
  SimStrategy strategy_ = SimStrategy::kUniform;
  SimTrace trace_;
  End end_ = End::kFinished;
  std::string failure_;
};

}  // namespace eventide
