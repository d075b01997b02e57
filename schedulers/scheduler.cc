#include "schedulers/scheduler.h"

#include "absl/strings/str_format.h"
#include "schedulers/cost.h"

namespace eventide {
namespace {

uint32_t ChooseStatic(const Program&, int, const MachineShape&, std::string& reason) {
  reason = "asked for";
  return kPolicyStatic;
}

// A gate has one task; a counter for it would only cost.
uint32_t ChooseTicket(const Program& program, int grid, const MachineShape&, std::string& reason) {
  if (program.grids[grid].is_gate) {
    reason = "a gate has one task";
    return kPolicyStatic;
  }
  reason = "asked for";
  return kPolicyTicket;
}

uint32_t ChooseAuto(const Program& program, int grid, const MachineShape& machine,
                    std::string& reason) {
  if (program.grids[grid].is_gate) {
    reason = "a gate has one task";
    return kPolicyStatic;
  }
  const GridCost cost = CostOf(program, grid);
  if (machine.workers == 1) {
    reason = "one worker takes everything";
    return kPolicyStatic;
  }
  if (machine.preemptible && cost.max_tasks > 1) {
    // 4 ns a task, against milliseconds when a fixed task's thread does not run.
    reason = "whichever thread runs takes the next task";
    return kPolicyTicket;
  }
  if (cost.ragged && cost.max_tasks > machine.workers) {
    reason = absl::StrFormat(
        "its tasks vary in length with what the device decides, up to %d of them for %d workers",
        cost.max_tasks, machine.workers);
    return kPolicyTicket;
  }
  reason = absl::StrFormat("its tasks are alike (%d KiB of weights): round-robin needs no atomics",
                           cost.weight_bytes >> 10);
  return kPolicyStatic;
}

constexpr Scheduler kSchedulers[] = {
    {"auto", "static, and ticket for grids whose tasks vary in length (on threads: for all)",
     &ChooseAuto},
    {"static", "round-robin over the workers, continuing across grids", &ChooseStatic},
    {"ticket", "an atomic counter per grid and layer", &ChooseTicket},
};

}  // namespace

absl::Span<const Scheduler> Schedulers() {
  return kSchedulers;
}

absl::StatusOr<PolicyPlan> Plan(const Program& program, const MachineShape& machine,
                                absl::string_view scheduler) {
  if (machine.workers < 1) return absl::InvalidArgumentError("a machine needs at least one worker");
  std::string names;
  for (const Scheduler& row : kSchedulers) {
    if (scheduler != row.name) {
      absl::StrAppend(&names, names.empty() ? "" : ", ", row.name);
      continue;
    }
    PolicyPlan plan;
    for (size_t grid = 0; grid < program.grids.size(); ++grid) {
      std::string reason;
      plan.policy.push_back(row.choose(program, static_cast<int>(grid), machine, reason));
      plan.reason.push_back(std::move(reason));
    }
    return plan;
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("there is no policy \"%s\"; there are %s", scheduler, names));
}

}  // namespace eventide
