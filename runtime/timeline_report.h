// Where a step's time went, from a timeline file (runtime/chrome_trace.h).
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/status.h"

namespace eventide {

// One task grid, over all layers. Times are of the role that computes, unless said.
struct GridTime {
  std::string name;
  int64_t tasks = 0;
  double mean_us = 0, max_us = 0;  // of a task, its waits before the start left out
  // By how much the grid moved the end of the last finished task forward, summed over layers: these
  // parts of all grids, the head and the tail add up to the step.
  double advance_ms = 0;
  double floor_ms = 0;      // the bytes it streams at the read ceiling; 0 where neither is known
  double wait_ms = 0;       // for events, mean over workers
  double stall_ms = 0;      // for pages to arrive, mean over workers
  double imbalance_us = 0;  // last worker's end against the mean end, mean over layers
  double hop_us = 0;        // from an event's last notifier to the first that went on; median
  int64_t bytes = 0;        // streamed
};

struct TimelineReport {
  nlohmann::ordered_json about;
  int workers = 0;
  double step_ms = 0;
  double head_ms = 0, tail_ms = 0;  // before the first task; after the last
  double floor_ms = 0;              // of all bytes that must be read; 0: not known
  // The stream role: waiting for free pages (mean over workers), its end before the step's, bytes
  // asked for and not yet there (mean over its copies).
  double stream_stall_ms = 0, stream_ahead_ms = 0, in_flight_bytes = 0;
  int64_t stream_bytes = 0;
  int64_t dropped = 0;          // tasks that the recording had no room for
  std::vector<GridTime> grids;  // in the program's order
};

absl::StatusOr<TimelineReport> ReportTimeline(const nlohmann::ordered_json& trace);
absl::StatusOr<TimelineReport> ReportTimelineFile(const std::string& path);

std::string ToText(const TimelineReport& report);
nlohmann::ordered_json ToJson(const TimelineReport& report);

}  // namespace eventide
