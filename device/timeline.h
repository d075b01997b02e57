// What workers note of every task when a timeline is asked for (P::kTimeline, see loop.h). Nothing
// of it is compiled into other programs. Each worker and role has a ring of its own, written by one
// thread; at a step's start it is emptied, so after a step it holds that step.
#pragma once

#include "device/abi.h"

namespace eventide {

// Times are in ns of one clock for all workers: %globaltimer on a GPU, the steady clock on a CPU.
struct TimelineRecord {
  u64 start_ns;     // the role took up the task
  u64 wait_end_ns;  // stream: indices published; input: events fired; compute: ready
  u64 end_ns;       // compute: all notified
  i32 grid, layer;
  i32 at[kMaxCoords];
  u32 stall_ns;   // waited for pages after wait_end: free ones (producers) or filled ones (compute)
  u32 bytes;      // copied by this task in this role
  u32 copies;     // pages filled
  // Sum over these copies of pages asked for and not arrived yet, itself included, from a sample of them.
  u32 in_flight;
  u32 reserved;
};
static_assert(sizeof(TimelineRecord) == 64, "TimelineRecord");

struct TimelineRing {
  u32 count;  // records written; beyond the capacity the oldest are overwritten
  u32 reserved;
  u64 begin_ns, end_ns;  // of the role's walk over the step
  u64 reserved2;
};
static_assert(sizeof(TimelineRing) == 32, "TimelineRing");

// At ProgramRecord::timeline: this, then workers * kRoles rings (worker-major), each followed by
// its records.
struct TimelineHeader {
  u32 capacity;  // records of a ring
  u32 rings;
  u64 reserved[3];
};
static_assert(sizeof(TimelineHeader) == 32, "TimelineHeader");

EVT_FN constexpr u64 TimelineRingBytes(u32 capacity) {
  return sizeof(TimelineRing) + u64{capacity} * sizeof(TimelineRecord);
}
EVT_FN constexpr u64 TimelineBytes(u32 capacity, u32 workers) {
  return sizeof(TimelineHeader) + u64{workers} * kRoles * TimelineRingBytes(capacity);
}

// Whether programs of type P record.
template <class P>
inline constexpr bool kRecordsTimeline = requires {
  requires P::kTimeline;
};

// The one recording thread of a role. Fields go to memory as they become known: a role has no
// registers to spare.
struct TaskTimer {
  TimelineRing* ring = nullptr;
  u32 capacity = 1;
  u64 stalled_since = 0;  // 0: not stalled
  u32 stall_ns = 0, bytes = 0, copies = 0, in_flight = 0;

  EVT_FN void BeginStep(const ProgramRecord& program, u32 worker, u32 role, u64 now) {
    const TimelineHeader* header = reinterpret_cast<const TimelineHeader*>(program.timeline);
    capacity = header->capacity;
    ring = reinterpret_cast<TimelineRing*>(program.timeline + sizeof(TimelineHeader) +
                                           (u64{worker} * kRoles + role) *
                                               TimelineRingBytes(capacity));
    ring->count = 0;
    ring->begin_ns = now;
    stalled_since = 0;
  }
  EVT_FN void EndStep(u64 now) { ring->end_ns = now; }
  EVT_FN TimelineRecord& Record() {
    return reinterpret_cast<TimelineRecord*>(ring + 1)[ring->count % capacity];
  }
  EVT_FN void Start(i32 grid, const Coord& at, u64 now) {
    TimelineRecord& r = Record();
    r.start_ns = r.wait_end_ns = now;
    r.grid = grid;
    r.layer = at.layer;
    for (int i = 0; i < kMaxCoords; ++i) r.at[i] = at.at[i];
    stall_ns = bytes = copies = in_flight = 0;
  }
  EVT_FN void WaitEnd(u64 now) {
    Record().wait_end_ns = now;
    stall_ns = 0;
  }
  EVT_FN void End(u64 now) {
    TimelineRecord& r = Record();
    r.end_ns = now;
    r.stall_ns = stall_ns;
    r.bytes = bytes;
    r.copies = copies;
    r.in_flight = in_flight;
    ++ring->count;
  }
  EVT_FN void StallBegins(u64 now) { stalled_since = now; }
  EVT_FN void StallEnds(u64 now) {
    stall_ns += static_cast<u32>(now - stalled_since);
    stalled_since = 0;
  }
};

}  // namespace eventide
