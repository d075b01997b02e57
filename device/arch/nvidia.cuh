// NVIDIA GPUs as a target: one thread block is a worker; its warps are the roles. Warps 0-7
// compute, warp 8 streams, warp 9 brings input; warp 10 walks for compute and input, warp 11 notifies. What differs
// between generations (copies, fences, registers) is the Port type of sm80.cuh, sm90.cuh and others.
//
// Shared memory: SharedState, the compute role's scratch, then pages: all at constant offsets. Each
// lane is a ring of slots; a slot is a page (or none: "ready") with two mbarriers: `full` completes
// when the page's data is there, `empty` when all compute warps have dropped it. The producer
// returns emptied pages to the pool itself, in order, so consumers do no more than arrive.
//
// Here is what the roles share; the roles are nvidia_producer.cuh and nvidia_compute.cuh, and
// nvidia_worker.cuh puts them together.
#pragma once

#include "device/atomic.h"
#include "device/dtype.h"
#include "device/event.h"
#include "device/layout.h"
#include "device/loop.h"
#include "device/pages.h"

namespace eventide {

inline constexpr u32 kComputeWarps = 8;
inline constexpr u32 kComputeThreads = 32 * kComputeWarps;
inline constexpr u32 kThreads = kComputeThreads + 128;
inline constexpr u32 kStreamWarp = 8, kInputWarp = 9;
inline constexpr u32 kSlots = 16;  // of one lane
inline constexpr u32 kTicketSlots = 8;
inline constexpr i32 kSharedNodes = 18;
inline constexpr i32 kNoPage = -1;
inline constexpr u32 kUnderWay = 4;  // pages of the stream role whose data has not arrived, at most (6: 1 % slower)
inline constexpr u32 kPollsPerCheck = 128;  // polls between looks at the ended flag, but for BarrierWait's
inline constexpr u32 kPollsPerWatch = 512;  // between looks at other workers
inline constexpr u32 kWalkWarp = 10, kNotifyWarp = 11;
inline constexpr u32 kHandedSlots = 4;  // tasks handed over and not through
inline constexpr i32 kHandedWaits = 16;
static_assert(kHandedSlots <= kPreparedTasks);

EVT_FN u32 SharedAddress(const void* p) {
  return static_cast<u32>(__cvta_generic_to_shared(p));
}
EVT_FN u32 LaneId() {
  return threadIdx.x % 32;
}
EVT_FN u64 NowNs() {
  u64 t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
}

// mbarrier words, all at block scope: arrive releases, a successful wait acquires.
// Addresses are of shared memory.
EVT_FN void BarrierInit(u32 barrier, u32 count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
EVT_FN void BarrierArrive(u32 barrier) {
  asm volatile("{ .reg .b64 t; mbarrier.arrive.shared::cta.b64 t, [%0]; }" ::"r"(barrier)
               : "memory");
}
EVT_FN bool BarrierTest(u32 barrier, u32 parity) {
  u32 done;
  asm volatile(
      "{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, "
      "p; }"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

// What a slot of a lane holds: a page, and how far apart its pieces are.
struct alignas(8) SlotPage {
  i32 page;  // or kNoPage
  u32 piece_bytes;
};

// What a role is at: its task, and what it waits for once a wait is no longer short. For the watch. Compute's task is
// the handed one in slot `target`.
struct Waiting {
  u32 cause;  // AbortCause
  i32 grid;
  Coord at;
  u32 element, target;
};

// A task as the walk warp hands it to the roles that follow it (nvidia_tasks.cuh): with all that can be known
// before its events fire. What its op has prepared lies in Prepared.
struct Handed {
  enum Flag : u32 { kWaitsOnly = 32 };  // beside GridTurn's: no task, but more of the next one's waits
  TaskName task;  // grid < 0: there are no more
  u32 flags;
  i32 waits;      // elements to wait for
  u32 element[kHandedWaits], target[kHandedWaits];
  // What the input role copies, where that is pages of one run of memory, all of it so many times; 0: its op knows.
  i32 times;
  u32 page_bytes, bytes;
  alignas(8) u64 from;
};

// What is addressed by constants (below).
struct SharedHead {
  PagePool<DirectSync> pool;
  u64 full[kLanes][kSlots];
  u64 empty[kLanes][kSlots];
  SlotPage slot[kLanes][kSlots];
  u64 ticket_full[kTicketSlots], ticket_empty[kTicketSlots];
  u32 ticket[kTicketSlots];
  // Of a handed task: it is there, compute has done it, input and notify are through with it.
  u64 begun[kHandedSlots], done[kHandedSlots], sent[kHandedSlots];
  u32 ended;  // the step has been aborted: set by the notify warp, which watches, polled by all waits
  u32 left;   // the compute role has left
  Waiting waiting[kRoles];  // `cause` is its first word
};
struct SharedState : SharedHead {
  Handed handed[kHandedSlots];
  TaskTimer notes[kRoles];  // for the timeline, where a step is recorded; here they cost no registers
  u32 arrivals;  // what Arrive hands to the role's threads
  i32 sum_of_rows;
  ProgramRecord program;  // a copy: read all the time, and registers are for sums
  // Node records, if there are no more: parameters are read at every turn, and every acquire of an event
  // empties the first-level cache that global ones would lie in.
  Node nodes[kSharedNodes];
  GridTurn grids[kKnownGrids];
  StepView step;
};
// Where its barriers and slots are, from its start: the first members, in order, without gaps (NVRTC has no
// offsetof).
EVT_FN constexpr u32 FullAt(u32 lane, u32 slot) {
  return sizeof(PagePool<DirectSync>) + (lane * kSlots + slot) * 8;
}
EVT_FN constexpr u32 EmptyAt(u32 lane, u32 slot) {
  return FullAt(kLanes, 0) + (lane * kSlots + slot) * 8;
}
EVT_FN constexpr u32 SlotAt(u32 lane, u32 slot) {
  return EmptyAt(kLanes, 0) + (lane * kSlots + slot) * 8;
}
EVT_FN constexpr u32 TicketFullAt(u32 slot) { return SlotAt(kLanes, 0) + slot * 8; }
EVT_FN constexpr u32 TicketEmptyAt(u32 slot) { return TicketFullAt(kTicketSlots) + slot * 8; }
EVT_FN constexpr u32 BegunAt(u32 slot) {
  return TicketEmptyAt(kTicketSlots) + kTicketSlots * 4 + slot * 8;
}
EVT_FN constexpr u32 DoneAt(u32 slot) { return BegunAt(kHandedSlots) + slot * 8; }
EVT_FN constexpr u32 SentAt(u32 slot) { return DoneAt(kHandedSlots) + slot * 8; }
EVT_FN constexpr u32 EndedWord() { return SentAt(kHandedSlots); }
EVT_FN constexpr u32 CauseWord(u32 role) { return EndedWord() + 8 + role * sizeof(Waiting); }
static_assert(sizeof(SharedHead) == CauseWord(kRoles), "an address above is not its member's");
EVT_FN SlotPage LoadSlot(u32 address) {
  SlotPage slot;
  asm volatile("ld.shared::cta.v2.u32 {%0, %1}, [%2];"
               : "=r"(slot.page), "=r"(slot.piece_bytes)
               : "r"(address)
               : "memory");
  return slot;
}
EVT_FN void StoreSlot(u32 address, SlotPage slot) {
  asm volatile("st.shared::cta.v2.u32 [%0], {%1, %2};" ::"r"(address), "r"(slot.page),
               "r"(slot.piece_bytes)
               : "memory");
}
inline constexpr u32 kSharedStateBytes = (sizeof(SharedState) + 127) / 128 * 128;
static_assert(kSharedStateBytes <= kWorkerStateBytes, "the host counts pages with it");
// Scratch and memo follow, then pages.
inline constexpr u32 kPagesAt = (kSharedStateBytes + kScratchBytes + kKeptBytes + 127) / 128 * 128;

struct ElementWait {
  const u32* counter;
  u32 target, element;
};

// A port of a program that records a timeline (device/timeline.h). All that the recording adds to a
// worker hangs on this type.
template <class Port>
struct RecordingPort : Port {
  static constexpr bool kTimeline = true;
};
template <class Port, bool kTimeline>
struct PortOf {
  using Type = Port;
};
template <class Port>
struct PortOf<Port, true> {
  using Type = RecordingPort<Port>;
};

// The thread of a role that keeps its notes.
EVT_FN bool Records() {
  return threadIdx.x == 0 || (threadIdx.x >= kComputeThreads && LaneId() == 0);
}

template <class Port, class T, int kTokens>
class GpuLinearTile;
template <class Port, class T>
class GpuAttentionTile;
template <class Port, class T>
class GpuLongAttention;

// What all roles have: the step, waiting, aborting. One object per thread.
template <class Port>
struct GpuWorkerBase {
  template <class T, int kTokens>
  using LinearTile = GpuLinearTile<Port, T, kTokens>;
  template <class T>
  using AttentionTile = GpuAttentionTile<Port, T>;
  template <class T>
  using LongAttention = GpuLongAttention<Port, T>;
  static constexpr i32 kGroups = kComputeWarps;
  static constexpr bool kSwizzledKv = true;
  static constexpr bool kPagesAreCopies = true;
  static constexpr bool kTensorBoxes = Port::kTensorBoxes;
  static constexpr bool kWideTiles = Port::kWgmma;

  // The worker's shared-memory address. All that lies there is addressed by it: from the array's name, the compiler would
  // work its place out from special registers each time.
  u32 base;
  SharedState& shared;
  u8* pages;
  const ProgramRecord& program;
  const StepView& step;
  u32 worker, workers;
  u32 tickets = 0;  // taken so far, the same in all roles
  bool aborted_ = false;

  EVT_FN explicit GpuWorkerBase(SharedState& state)
      : base(static_cast<u32>(Opaque(static_cast<i32>(SharedAddress(&state))))),
        shared(*static_cast<SharedState*>(__cvta_shared_to_generic(base))),
        pages(reinterpret_cast<u8*>(&shared) + kPagesAt),
        program(shared.program),
        step(shared.step),
        worker(blockIdx.x),
        workers(gridDim.x) {}

  EVT_FN bool aborted() const { return aborted_; }
  template <class P>
  EVT_FN void KnowTurns(const P&) const {}  // ShareGrids
  template <class P>
  EVT_FN GridTurn TurnOf(const P& p, i32 grid) const {
    return grid < kKnownGrids ? shared.grids[grid] : UnknownTurn(p, grid);
  }
  // The input lane always gets so many pages: a task may hold them while others wait.
  EVT_FN i32 MostKept() const { return static_cast<i32>(shared.pool.floor[kLaneInput]); }
  // In the slow part of a wait, every kPollsPerCheck polls: says what is waited for, and whether
  // the step has ended meanwhile. Looking at clocks and at other workers is the notify warp's
  // business.
  EVT_FN bool Ended(u32 role, u32 cause) {
    SetCause(role, cause);
    return HasEnded();
  }
  EVT_FN bool EndedAt(u32 role, u32 element, u32 target) {
    volatile Waiting* waiting = &shared.waiting[role];
    waiting->element = element;
    waiting->target = target;
    return Ended(role, kAbortStuckEvent);
  }
  EVT_FN bool HasEnded() const { return *static_cast<volatile u32*>(&shared.ended) != 0; }
  // What ops keep from task to task, and behind it what they prepare of each task that is handed over.
  EVT_FN u8* Memo() const { return reinterpret_cast<u8*>(&shared) + kSharedStateBytes + kScratchBytes; }
  EVT_FN u8* PreparedOf(u32 slot) const { return Memo() + kMemoBytes + slot * kPreparedBytes; }
  EVT_FN void SetCause(u32 role, u32 cause) {
    static_cast<volatile Waiting*>(&shared.waiting[role])->cause = cause;
  }
  // For the story of a stuck wait: in shared memory, where it costs no registers.
  EVT_FN void SetTask(u32 role, const TaskName& task) {
    volatile Waiting* waiting = &shared.waiting[role];
    waiting->grid = task.grid;
    waiting->at.layer = task.at.layer;
    for (int i = 0; i < kMaxCoords; ++i) waiting->at.at[i] = task.at.at[i];
  }

  // Where the k-th element of a box is and what it must reach.
  template <class P>
  EVT_FN ElementWait WaitFor(const P& p, const ElementBox& box, i32 k) const {
    i32 index[kMaxEventDims];
    box.Index(k, index);
    const i32 element = p.Element(box.event, index);
    return ElementWait{CounterAt(program, step.header->bank, element),
                       static_cast<u32>(p.Target(step, box.event, index)),
                       static_cast<u32>(element)};
  }
  template <class P>
  EVT_FN u32* CounterOf(const P& p, const ElementBox& box, i32 k) const {
    i32 index[kMaxEventDims];
    box.Index(k, index);
    return CounterAt(program, step.header->bank, p.Element(box.event, index));
  }
  // By a warp: the elements of a box, 32 at a time. Counterpart: the acquires of waits.
  template <class P>
  EVT_FN void Notify(const P& p, const ElementBox& box) const {
#pragma unroll 1
    for (i32 k = static_cast<i32>(LaneId()); k < box.size(); k += 32) {
      DirectSync::AddRelease(CounterOf(p, box, k), 1);
    }
    __syncwarp();
  }
  EVT_FN void CountFinished() {
    DirectSync::AddRelaxed(reinterpret_cast<u32*>(program.progress), 1);
  }

  // Only with a timeline, but for Stalls and StallEnds, which do nothing without.
  EVT_FN TaskTimer& Notes() const {
    const u32 warp = threadIdx.x / 32;
    return shared.notes[warp < kComputeWarps ? kRoleCompute : warp == kStreamWarp ? kRoleStream : kRoleInput];
  }
  EVT_FN void TimeStep(u32 role) {
    if (Records()) Notes().BeginStep(program, worker, role, NowNs());
  }
  EVT_FN void TimeStepEnd() {
    if (Records()) Notes().EndStep(NowNs());
  }
  EVT_FN void TimeTask(const TaskName& task) {
    if (Records()) Notes().Start(task.grid, task.at, NowNs());
  }
  EVT_FN void TimeReady() {
    if (Records()) Notes().WaitEnd(NowNs());
  }
  EVT_FN void TimeEnd() {
    if (Records()) Notes().End(NowNs());
  }
  // By the role's one thread that notes.
  EVT_FN void Stalls(bool notes) const {
    if constexpr (kRecordsTimeline<Port>) {
      if (notes && Notes().stalled_since == 0) Notes().StallBegins(NowNs());
    }
  }
  EVT_FN void StallEnds(bool notes) const {
    if constexpr (kRecordsTimeline<Port>) {
      if (notes && Notes().stalled_since != 0) Notes().StallEnds(NowNs());
    }
  }
};

}  // namespace eventide
