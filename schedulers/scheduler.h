// Which policy hands out each grid's tasks, and why. Policies answer "which task does this worker
// take next" over one linear order (device/loop.h); all of them give the same results.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/program.h"
#include "device/abi.h"

namespace eventide {

struct MachineShape {
  int workers = 1;
  // Workers are threads that the operating system may stop at any time for milliseconds.
  bool preemptible = false;
};

struct PolicyPlan {
  std::vector<uint32_t> policy;     // PolicyId, by grid
  std::vector<std::string> reason;  // one sentence each
};

// A way to choose: a row of the table in scheduler.cc. To add one, add a row.
struct Scheduler {
  const char* name;     // what --policy takes
  const char* summary;  // for --help
  // The policy of one grid, with the reason.
  uint32_t (*choose)(const Program& program, int grid, const MachineShape& machine,
                     std::string& reason);
};

absl::Span<const Scheduler> Schedulers();

// The error lists the names there are.
absl::StatusOr<PolicyPlan> Plan(const Program& program, const MachineShape& machine,
                                absl::string_view scheduler);

}  // namespace eventide
