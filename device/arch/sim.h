// The simulator as a target: every role of every worker is a fibre, and a seed decides who runs
// after each atomic access (runtime/sim_world.h). The same shape as on the GPU: pages are copied
// into page memory through rings of slots, copies finish some time after they were issued, and what
// is not yet or no longer there is poison (0xff bytes: NaN as a float), so that reading too early
// or too late shows.
#pragma once

#include "device/arch/cpu_linear.h"
#include "device/arch/host_attention.h"
#include "device/arch/host_sums.h"
#include "device/arch/host_turns.h"
#include "device/atomic.h"
#include "device/event.h"
#include "device/loop.h"
#include "device/pages.h"

namespace eventide {

// What a fibre waits for, so that a deadlock can be explained.
struct SimWait {
  enum Kind : u32 { kNothing, kEvent, kPage, kSlotEmpty, kSlotFull, kReady, kTicket };
  Kind kind;
  u32 lane;
  i32 element;
  u32 seen, expected;
};

// One copy into a page, finished by the simulator when the seed says so; `done` is set to 1 after
// it.
struct SimCopy {
  u8* to;
  CopyShape shape;
  const u8* from[kMaxPieces];  // run by run
  u32* done;
  u32 unit = 0;  // not 0: `shape.pieces` rows, interleaved as CopyRows says (port_example.h)
};

// The scheduler's side (runtime/sim_world.cc), for the fibre that calls.
void SimYield();                       // a point where another fibre may run
void SimChanged(const void* address);  // shared state was written there
u64 SimVersion();                      // counts SimChanged
// Sleeps until `address` (null: anything) is written; returns at once if anything was since
// `version`.
void SimBlock(u64 version, const void* address, const SimWait& wait);
void SimIssue(const SimCopy& copy);
// Issues, or appends to `held` (a list of the simulator's) if that is not null.
void SimIssueOrHold(void* held, const SimCopy& copy);
bool SimCoin();                  // a choice that is nobody's: either must be right
void SimFail(const char* what);  // an op broke the rules of pages; does not return

// Atomic accesses with a switch point on both sides of each. The memory itself is only ever touched
// by one thread.
struct SimSync {
  template <class T>
  static EVT_FN T Load(const T* p) {
    SimYield();
    const T v = *const_cast<const volatile T*>(p);
    SimYield();
    return v;
  }
  template <class T>
  static EVT_FN T Exchange(T* p, T v, bool add) {
    SimYield();
    const T old = *p;
    *p = add ? old + v : v;
    SimChanged(p);
    SimYield();
    return old;
  }
  template <class T>
  static EVT_FN bool Swap(T* p, T expected, T desired) {
    SimYield();
    const bool same = *p == expected;
    if (same) {
      *p = desired;
      SimChanged(p);
    }
    SimYield();
    return same;
  }
  static EVT_FN u32 LoadAcquire(const u32* p) { return Load(p); }
  static EVT_FN u32 LoadRelaxed(const u32* p) { return Load(p); }
  static EVT_FN void StoreRelaxed(u32* p, u32 v) { Exchange(p, v, false); }
  static EVT_FN void StoreRelease(u32* p, u32 v) { Exchange(p, v, false); }
  static EVT_FN void AddRelease(u32* p, u32 v) { Exchange(p, v, true); }
  static EVT_FN u32 FetchAddAcqRel(u32* p, u32 v) { return Exchange(p, v, true); }
  static EVT_FN u32 FetchAddRelaxed(u32* p, u32 v) { return Exchange(p, v, true); }
  static EVT_FN bool CompareAndSwap(u32* p, u32 e, u32 d) { return Swap(p, e, d); }
  static EVT_FN u64 LocalLoad(const u64* p) { return Load(p); }
  static EVT_FN u64 LocalFetchAdd(u64* p, u64 v) { return Exchange(p, v, true); }
  static EVT_FN bool LocalCompareAndSwap(u64* p, u64 e, u64 d) { return Swap(p, e, d); }
};

inline constexpr u32 kSimSlots = 16;   // pages a lane may have asked for and not dropped
inline constexpr u32 kSimTickets = 8;  // tickets taken by one role and not yet by all
inline constexpr u8 kSimPoison = 0xff;

// A slot of a lane's ring. Its producer fills it when it is empty, its consumer empties it.
struct SimSlot {
  u32 full;  // 0 or 1: the hand-over in both directions
  i32 page;
  u32 bytes;  // of a piece
  u32 used;   // of the page
  TaskName task;
};

struct SimTicket {
  u32 claimed, filled;  // position + 1 of the ring's users that holds the slot
  u32 value;
};

// What the roles of one worker share: its shared memory, on a GPU.
struct SimShared {
  PagePool<SimSync> pool;
  u8* pages;  // page memory
  SimSlot slots[kLanes][kSimSlots];
  u32 asked[kLanes], dropped[kLanes];  // for the audit after the step
  u32 ready;
  SimTicket tickets[kSimTickets];
  u32 positions[kRoles];  // tickets a role has taken
  u8* scratch;
};

struct SimPage {
  u8* base;
  u32 bytes;
  EVT_FN const u8* Piece(i32 i) const { return base + static_cast<u64>(i) * bytes; }
};

// One role of one worker.
struct SimWorker : HostWords<SimWorker> {
  template <class T, int kTokens>
  using LinearTile = CpuLinearTile<0, T, kTokens>;
  template <class T>
  using AttentionTile = HostAttentionTile<T>;
  template <class T>
  using LongAttention = HostLongAttention<T>;
  static constexpr i32 kGroups = 1;
  static constexpr bool kSwizzledKv = false;
  static constexpr bool kPagesAreCopies = true;
  static constexpr bool kTensorBoxes = false;
  static constexpr bool kWideTiles = false;
  StepView step;
  u32 worker, workers;
  u32 role;
  const ProgramRecord* program;
  SimShared* shared;
  TaskName task;
  HostTurns turns;
  u32 asked, taken[kLanes], dropped[kLanes], tasks, finished;
  void* held;  // where copies wait (a negative control); null otherwise

  // --- producers
  // ------------------------------------------------------------------------------------------
  template <class Source>
  void Copy(const CopyShape& shape, const Source& source) {
    const u32 run = shape.RunSize();
    if (shape.pieces < 1 || shape.runs < 1 || shape.pieces * shape.runs > kMaxPieces ||
        shape.bytes % 16 != 0 || shape.last_bytes % 16 != 0 || shape.last_bytes > shape.bytes ||
        shape.run_bytes % 16 != 0 || (shape.runs > 1 && run > shape.run_bytes) ||
        static_cast<u64>(shape.runs - 1) * shape.run_bytes + run > kPageBytes) {
      SimFail("copies pieces that do not fit a page, or are no multiple of 16 bytes");
    }
    SimSlot& slot =
        NextSlot(shape.bytes, static_cast<u32>(shape.runs - 1) * shape.run_bytes + run);
    SimCopy copy;
    copy.to = shared->pages + static_cast<u64>(slot.page) * kPageBytes;
    copy.shape = shape;
    for (i32 i = 0; i < shape.pieces * shape.runs; ++i) {
      copy.from[i] = reinterpret_cast<const u8*>(source(i % shape.pieces, i / shape.pieces));
      if (reinterpret_cast<u64>(copy.from[i]) % 16 != 0)
        SimFail("copies from an unaligned address");
    }
    copy.done = &slot.full;
    SimIssueOrHold(held, copy);
  }
  template <class F>
  EVT_FN void ByOne(const F& f) {
    f(*this);
  }
  template <class Source>
  void CopyRows(i32 rows, u32 bytes, u32 unit, const Source& source) {
    const u32 used = static_cast<u32>(CeilDiv(rows, 8)) * bytes;
    if (rows < 1 || rows > 32 || unit % 16 != 0 || unit == 0 || bytes % (8 * unit) != 0 ||
        used > kPageBytes) {
      SimFail("gathers rows that do not fit a page, or are no multiple of 16 bytes");
    }
    SimSlot& slot = NextSlot(bytes, used);
    SimCopy copy;
    copy.to = shared->pages + static_cast<u64>(slot.page) * kPageBytes;
    copy.shape = CopyShape::Of(rows, bytes);
    copy.unit = unit;
    for (i32 r = 0; r < rows; ++r) copy.from[r] = reinterpret_cast<const u8*>(source(r));
    copy.done = &slot.full;
    SimIssueOrHold(held, copy);
  }
  void Blank() { SimSync::StoreRelease(&NextSlot(kPageBytes, kPageBytes).full, 1); }

  // --- the compute role
  // -----------------------------------------------------------------------------------
  SimPage Take(u32 lane) {
    const SimPage page = Peek(lane, 0);
    ++taken[lane];
    return page;
  }
  SimPage Peek(u32 lane, i32 ahead) {
    SimSlot& slot = shared->slots[lane][(taken[lane] + static_cast<u32>(ahead)) % kSimSlots];
    for (;;) {
      const u64 version = SimVersion();
      // Counterpart: the end of the copy.
      if (SimSync::LoadAcquire(&slot.full) == 1) break;
      SimBlock(version, &slot.full, SimWait{SimWait::kSlotFull, lane, 0, 0, 1});
    }
    if (slot.task.grid != task.grid || slot.task.at.layer != task.at.layer ||
        slot.task.at.at[0] != task.at.at[0] || slot.task.at.at[1] != task.at.at[1] ||
        slot.task.at.at[2] != task.at.at[2]) {
      SimFail(
          "takes a page that was asked for by another task: parts disagree about the pages of a "
          "task");
    }
    return SimPage{shared->pages + static_cast<u64>(slot.page) * kPageBytes, slot.bytes};
  }
  void Again(u32 lane) { taken[lane] = dropped[lane]; }
  EVT_FN i32 MostKept() const { return static_cast<i32>(shared->pool.floor[kLaneInput]); }
  // One thread takes pages in order: the next one to be released is the oldest.
  void Release(u32 lane, i32 ahead, i32, bool) {
    if (taken[lane] + static_cast<u32>(ahead) != dropped[lane])
      SimFail("releases a page before an older one");
    GiveBack(lane);
  }
  void Advance(u32 lane, i32 pages) {
    taken[lane] += static_cast<u32>(pages);
    if (taken[lane] != dropped[lane]) SimFail("passes pages that it has not released");
  }
  void Drop(u32 lane) {
    if (dropped[lane] == taken[lane]) SimFail("drops a page that it has not taken");
    GiveBack(lane);
  }
  void GiveBack(u32 lane) {
    SimSlot& slot = shared->slots[lane][dropped[lane] % kSimSlots];
    __builtin_memset(shared->pages + static_cast<u64>(slot.page) * kPageBytes, kSimPoison,
                     slot.used);
    ++dropped[lane];
    ++shared->dropped[lane];
    shared->pool.Return(lane, slot.page);
    // Counterpart: the acquire in NextSlot.
    SimSync::StoreRelease(&slot.full, 0);
  }
  EVT_FN u8* Own(SimPage& page, const CopyShape&) { return page.base; }
  template <class F>
  EVT_FN void Parallel(i32 n, const F& f) {
    if (SimCoin()) {
      for (i32 i = 0; i < n; ++i) f(i);
    } else {
      for (i32 i = n - 1; i >= 0; --i) f(i);
    }
  }
  EVT_FN void Sync() {}
  EVT_FN bool Leader() const { return true; }
  EVT_FN u8* Scratch() { return shared->scratch; }
  EVT_FN u8* Memo() { return shared->scratch + kScratchBytes; }
  EVT_FN u8* Prepared() { return Memo() + kMemoBytes; }
  u32 Arrive(u32* counter) { return SimSync::FetchAddAcqRel(counter, 1); }
  static EVT_FN constexpr i32 FragmentElement(i32 row, i32 k) { return k * 16 + row; }

  // --- the loop
  // -------------------------------------------------------------------------------------------
  EVT_FN bool aborted() const { return false; }  // a failed step's fibres are never resumed
  EVT_FN bool Leaves() const { return aborted(); }
  EVT_FN bool Begin(const TaskName& name) {
    task = name;
    if (role == kRoleCompute) __builtin_memset(shared->scratch, kSimPoison, kScratchBytes);
    return true;
  }
  template <class P>
  bool Await(const P& p, const ElementBox& box, const TaskName& name) {
    task = name;
    for (i32 k = 0; k < box.size(); ++k) {
      i32 index[kMaxEventDims];
      box.Index(k, index);
      const i32 element = p.Element(box.event, index);
      const u32 target = static_cast<u32>(p.Target(step, box.event, index));
      const u32* counter = CounterAt(*program, step.header->bank, element);
      for (;;) {
        const u64 version = SimVersion();
        const u32 seen = SimSync::LoadAcquire(counter);
        if (seen >= target) break;
        SimBlock(version, counter, SimWait{SimWait::kEvent, 0, element, seen, target});
      }
    }
    return true;
  }
  template <class P>
  void Notify(const P& p, const ElementBox& box) {
    for (i32 k = 0; k < box.size(); ++k) {
      i32 index[kMaxEventDims];
      box.Index(k, index);
      SimSync::AddRelease(CounterAt(*program, step.header->bank, p.Element(box.event, index)), 1);
    }
  }
  void Ready() { SimSync::AddRelease(&shared->ready, 1); }
  bool AwaitReady() {
    ++tasks;
    for (;;) {
      const u64 version = SimVersion();
      // Counterpart: Ready.
      const u32 seen = SimSync::LoadAcquire(&shared->ready);
      if (seen >= tasks) return true;
      SimBlock(version, &shared->ready, SimWait{SimWait::kReady, 0, 0, seen, tasks});
    }
  }
  template <class P>
  EVT_FN void KnowTurns(const P& p) {
    turns.Know(p, step, workers);
  }
  template <class P>
  EVT_FN GridTurn TurnOf(const P& p, i32 grid) const {
    return turns.Of(p, grid);
  }
  template <class P>
  EVT_FN void Done(const P& p, const TaskName& done) {
    NotifyTask(p, *this, done.grid, done.at);
    Finished();
  }
  EVT_FN void Finished() { ++finished; }
  u32 TakeTicket(i32 element);

 private:
  // The lane's next slot, empty and with a page.
  SimSlot& NextSlot(u32 bytes, u32 used) {
    const u32 lane = role == kRoleStream ? kLaneStream : kLaneInput;
    if (role == kRoleCompute) SimFail("asks for a page in Compute");
    SimSlot& slot = shared->slots[lane][asked % kSimSlots];
    for (;;) {
      const u64 version = SimVersion();
      // Counterpart: the release in Drop.
      if (SimSync::LoadAcquire(&slot.full) == 0) break;
      SimBlock(version, &slot.full, SimWait{SimWait::kSlotEmpty, lane, 0, 1, 0});
    }
    for (;;) {
      const u64 version = SimVersion();
      slot.page = shared->pool.TryGrant(lane);
      if (slot.page >= 0) break;
      SimBlock(version, &shared->pool.word,
               SimWait{SimWait::kPage, lane, 0, PageWord::Held(shared->pool.word, lane), 1});
    }
    slot.bytes = bytes;
    slot.used = used;
    slot.task = task;
    ++asked;
    ++shared->asked[lane];
    return slot;
  }
};

// The next ticket of the worker. Whichever role needs it first takes it from the counter; the
// others find it in the ring. A slot is used again when all roles have passed it.
inline u32 SimWorker::TakeTicket(i32 element) {
  const u32 position = shared->positions[role];
  SimTicket& ticket = shared->tickets[position % kSimTickets];
  for (;;) {
    const u64 version = SimVersion();
    // Counterpart: the release of `filled` below.
    if (SimSync::LoadAcquire(&ticket.filled) == position + 1) break;
    const u32 claimed = SimSync::LoadRelaxed(&ticket.claimed);
    bool passed = claimed != position + 1;
    for (u32 r = 0; passed && r < kRoles; ++r) {
      passed = SimSync::LoadAcquire(&shared->positions[r]) + kSimTickets > position;
    }
    if (passed && SimSync::CompareAndSwap(&ticket.claimed, claimed, position + 1)) {
      ticket.value = SimSync::FetchAddRelaxed(CounterAt(*program, step.header->bank, element), 1);
      SimSync::StoreRelease(&ticket.filled, position + 1);
      break;
    }
    SimBlock(version, nullptr, SimWait{SimWait::kTicket, 0, element, claimed, position + 1});
  }
  const u32 value = ticket.value;
  // Lets the slot be used again; counterpart: the acquire of positions above.
  SimSync::StoreRelease(&shared->positions[role], position + 1);
  return value;
}

}  // namespace eventide
