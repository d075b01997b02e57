// The simulator as a backend: the real worker loop, pages and ops on seeded fibres in one thread.
// Equal seeds give equal schedules; a deadlock comes back as an error that lists who waits for
// what.
#pragma once

#include <memory>

#include "runtime/executor.h"
#include "runtime/op_table.h"
#include "runtime/sim_world.h"

namespace eventide {

using SimOpTable = OpTable<SimWorker>;

// Designs that fail, for tests that show the simulator sees it.
struct SimControls {
  bool one_page_lane = false;  // no floors: run-ahead of one lane may take every page
  bool zero_is_open = false;   // gates do nothing; elements without arrivals are open at once
  bool reserve_then_wait =
      false;  // the input role takes its task's pages, then waits for its events
};

struct SimExecutorOptions : ExecutorOptions {
  uint64_t seed = 0;
  int pages = 8;                         // of each worker, at most kMaxPages
  uint64_t most_switches = 200'000'000;  // a step with more of them is taken for a livelock
  const SimOpTable* ops = nullptr;       // null: the ops in ops/
  SimControls controls;
};

class SimExecutor {
 public:
  virtual ~SimExecutor() = default;
  virtual Executor& executor() = 0;
  // Of the next step; each step without one goes on with the last seed plus one.
  virtual void SetSeed(uint64_t seed) = 0;
  virtual const SimTrace& trace() const = 0;  // of the last step
};

absl::StatusOr<std::unique_ptr<SimExecutor>> MakeSimExecutor(Program program,
                                                             const SimExecutorOptions& options);
// The same as a plain Executor.
absl::StatusOr<std::unique_ptr<Executor>> MakeSimBackend(Program program,
                                                         const SimExecutorOptions& options);

}  // namespace eventide
