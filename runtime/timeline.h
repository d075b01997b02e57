// The timeline of one step as the host reads it: who did what when, and which task's arrival let
// which wait end.
#pragma once

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "device/timeline.h"
#include "runtime/executor.h"

namespace eventide {

inline constexpr int kMaxTimelineTasks = 1 << 18;  // ExecutorOptions::timeline_tasks

// What executors write to the head of the buffer.
TimelineHeader TimelineHeaderFor(int tasks, int workers);

struct TimelineTask {
  int worker = 0;
  uint32_t role = 0;  // Role; a worker that runs all roles in turn records as kRoleCompute
  TimelineRecord record = {};
};

struct TimelineRole {
  int worker = 0;
  uint32_t role = 0;
  uint64_t begin_ns = 0, end_ns = 0;
  uint64_t dropped = 0;  // records that the ring had no room for: the step's first ones
};

// The last notifier of an event element and the first task that went on because of it.
struct TimelineHop {
  size_t from = 0, to = 0;  // indices of tasks
  int event = 0;
  int64_t element = 0;  // in the bank
};

struct Timeline {
  std::vector<TimelineTask> tasks;  // worker by worker, role by role, in the order they were run
  std::vector<TimelineRole> roles;  // those that ran
  std::vector<TimelineHop> hops;    // by element
  uint64_t begin_ns = 0, end_ns = 0;
};

// Of the last step, which had these values of the program's symbols. Waits for the steps in flight.
absl::StatusOr<Timeline> ReadTimeline(Executor& executor, absl::Span<const int32_t> symbols);

}  // namespace eventide
