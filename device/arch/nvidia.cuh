// NVIDIA GPUs as a target: one thread block is a worker; its warps are the roles. Warps 0-7
// compute, warp 8 streams, warp 9 brings input, two warps fill the service warpgroup. What differs
// between generations (copies, fences, registers) is the Port type of sm80.cuh and sm90.cuh.
//
// Shared memory: SharedState, the compute role's scratch, then pages: all at constant offsets. Each
// lane is a ring of slots; a slot is a page (or none: "ready") with two mbarriers: `full` completes
// when the page's data is there, `empty` when all compute warps have dropped it. The producer
// returns emptied pages to the pool itself, in order, so consumers do no more than arrive.
//
// Longer than 400 lines because the roles of one block share one state and one protocol of pages.
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
inline constexpr i32 kSharedNodes = 24;
inline constexpr i32 kNoPage = -1;
inline constexpr u32 kPollsPerCheck = 128;  // polls between looks at the ended flag
inline constexpr u32 kWatchWarp = 10;
inline constexpr u32 kWorkingWarps = kComputeWarps + 2;

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

// What a role has been waiting for, told to the watch warp once a wait is no longer short.
struct Waiting {
  u32 cause;  // AbortCause, or kAbortNone
  i32 grid;
  Coord at;
  u32 element, target;
};

struct SharedState {
  PagePool<DirectSync> pool;
  u64 full[kLanes][kSlots];
  u64 empty[kLanes][kSlots];
  SlotPage slot[kLanes][kSlots];
  u64 ticket_full[kTicketSlots], ticket_empty[kTicketSlots];
  u32 ticket[kTicketSlots];
  u64 finished;  // completes when all working warps are through
  u32 ended;     // the step has been aborted: set by the watch warp, polled by all waits
  Waiting waiting[kRoles];
  u32 arrivals;  // what Arrive hands to the role's threads
  i32 sum_of_rows;
  ProgramRecord program;  // a copy: read all the time, and registers are for sums
  // Node records, if there are no more: parameters are read at every turn, and every acquire of an event
  // empties the first-level cache that global ones would lie in.
  Node nodes[kSharedNodes];
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

// Dynamic shared memory of a worker with this many pages (jit/arch.cc and the launch use the same
// sum).
EVT_FN constexpr u32 SharedBytes(u32 pages) {
  return pages * kPageBytes + kScratchBytes + kSharedStateBytes;
}

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

template <bool kTimeline>
struct GpuTimer {  // no notes
  EVT_FN void Stalls() {}
  EVT_FN void StallEnds() {}
};
template <>
struct GpuTimer<true> : TaskTimer {
  EVT_FN void Stalls() {
    if (stalled_since == 0) StallBegins(NowNs());
  }
  EVT_FN void StallEnds() {
    if (stalled_since != 0) TaskTimer::StallEnds(NowNs());
  }
};

// What all roles have: the step, waiting, aborting. One object per thread.
template <class Port>
struct GpuWorkerBase {
  SharedState& shared;
  // Its shared-memory address, which the compiler would else work out from special registers each time.
  u32 base;
  u8* pages;
  const ProgramRecord& program;
  const StepView& step;
  u32 worker, workers;
  u32 tickets = 0;  // taken so far, the same in all roles
  bool aborted_ = false;
  GpuTimer<kRecordsTimeline<Port>> timer;

  __device__ GpuWorkerBase(SharedState& state, u8* page_memory, const ProgramRecord& record)
      : shared(state),
        base(static_cast<u32>(Opaque(static_cast<i32>(SharedAddress(&state))))),
        pages(page_memory),
        program(record),
        step(state.step),
        worker(blockIdx.x),
        workers(gridDim.x) {}

  EVT_FN bool aborted() const { return aborted_; }
  // In the slow part of a wait, every kPollsPerCheck polls: says what is waited for, and whether
  // the step has ended meanwhile. Looking at clocks and at other workers is the watch warp's
  // business.
  EVT_FN bool Ended(u32 role, u32 cause, u32 element, u32 target) {
    volatile Waiting* waiting = &shared.waiting[role];
    waiting->cause = cause;
    waiting->element = element;
    waiting->target = target;
    return *static_cast<volatile u32*>(&shared.ended) != 0;
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
  // Counterpart: the acquires of waits.
  template <class P>
  EVT_FN void NotifyElement(const P& p, const ElementBox& box, i32 k) const {
    i32 index[kMaxEventDims];
    box.Index(k, index);
    DirectSync::AddRelease(CounterAt(program, step.header->bank, p.Element(box.event, index)), 1);
  }
  EVT_FN void CountFinished() {
    DirectSync::AddRelaxed(reinterpret_cast<u32*>(program.progress), 1);
  }

  // Only with a timeline.
  EVT_FN void TimeStep(u32 role) {
    if (Records()) timer.BeginStep(program, worker, role, NowNs());
  }
  EVT_FN void TimeStepEnd() {
    if (Records()) timer.EndStep(NowNs());
  }
  EVT_FN void TimeTask(const TaskName& task) {
    if (Records()) timer.Start(task.grid, task.at, NowNs());
  }
  EVT_FN void TimeReady() {
    if (Records()) timer.WaitEnd(NowNs());
  }
  EVT_FN void TimeEnd() {
    if (Records()) timer.End(NowNs());
  }
};

// A producer role. Grants pages in order, copies, takes back what compute has dropped. The stream role is
// one thread where one thread can issue copies (kAlone); else, and for the input role, which polls many
// events at once, it is a warp in which every decision is taken by all lanes together.
template <class Port, u32 kLane>
struct GpuProducer : GpuWorkerBase<Port> {
  using Base = GpuWorkerBase<Port>;
  static constexpr u32 kRole = kLane == kLaneStream ? kRoleStream : kRoleInput;
  static constexpr bool kAlone = kLane == kLaneStream && Port::kOneThreadCopies;
  u32 head = 0;      // slots asked for
  u32 tail = 0;      // slots taken back
  u32 patience = 0;  // pages still to be had from dropped slots before the pool is asked again

  using Base::Base;

  EVT_FN bool Begin(const TaskName& task) {
    if (First()) this->SetTask(kRole, task);
    return true;
  }
  template <class Source>
  EVT_FN void Copy(i32 pieces, u32 bytes, const Source& source, u32 last_bytes = 0) {
    const i32 page = Acquire(true, bytes);
    if (this->aborted_) return;
    Port::template CopyPieces<kAlone>(PagesAddress() + static_cast<u32>(page) * kPageBytes, pieces,
                                      bytes, last_bytes == 0 ? bytes : last_bytes, source,
                                      this->base + FullAt(kLane, head % kSlots));
    ++head;
    if constexpr (kRecordsTimeline<Port>) {
      NoteCopy(static_cast<u32>(pieces - 1) * bytes + (last_bytes == 0 ? bytes : last_bytes));
    }
  }
  EVT_FN void Blank() {
    Acquire(true, kPageBytes);
    FillEmpty();
  }
  EVT_FN void Ready() {
    Acquire(false, 0);
    FillEmpty();
  }

  // All elements of a box, 32 at a time.
  template <class P>
  EVT_FN bool Await(const P& p, const ElementBox& box, const TaskName&) {
    ReturnDropped();
    const i32 size = box.size();
#pragma unroll 1
    for (i32 first = 0; first < size; first += kAlone ? 1 : 32) {
      const i32 k = first + (kAlone ? 0 : static_cast<i32>(LaneId()));
      ElementWait wait = {};
      if (k < size) wait = this->WaitFor(p, box, k);
      if (!AwaitElements(wait)) return false;
    }
    // The lanes' acquires reach the lane that issues copies through the warp's votes; what ordinary
    // stores wrote may then be read by the copy engine.
    Together();
    Port::FenceBeforeCopyFromGlobal();
    return true;
  }
  // Gates only (the input role): everything was acquired by this warp, so its lanes may release.
  template <class P>
  EVT_FN void Notify(const P& p, const ElementBox& box) {
#pragma unroll 1
    for (i32 k = static_cast<i32>(LaneId()); k < box.size(); k += 32)
      this->NotifyElement(p, box, k);
    __syncwarp();
  }
  EVT_FN void Finished() {
    if (First()) this->CountFinished();
  }

  // The stream role draws tickets and hands them on; the input role reads them.
  EVT_FN u32 TakeTicket(i32 element) {
    SharedState& shared = this->shared;
    const u32 slot = this->tickets % kTicketSlots;
    const u32 parity = this->tickets / kTicketSlots % 2;
    ++this->tickets;
    if constexpr (kLane == kLaneStream) {
      if (!AwaitBarrier(this->base + TicketEmptyAt(slot), parity ^ 1)) return ~0u;
      u32 ticket = 0;
      if (First()) {
        ticket = DirectSync::FetchAddRelaxed(
            CounterAt(this->program, this->step.header->bank, element), 1);
        shared.ticket[slot] = ticket;
        BarrierArrive(this->base + TicketFullAt(slot));
      }
      return kAlone ? ticket : __shfl_sync(0xffffffffu, ticket, 0);
    } else {
      if (!AwaitBarrier(this->base + TicketFullAt(slot), parity)) return ~0u;
      const u32 ticket = shared.ticket[slot];
      __syncwarp();
      if (LaneId() == 0) BarrierArrive(this->base + TicketEmptyAt(slot));
      return ticket;
    }
  }

  // Until compute has dropped everything and every copy has landed: a block must not end before.
  EVT_FN void Drain() {
    while (!this->aborted_ && tail != head) {
      if (AwaitBarrier(this->base + EmptyAt(kLane, tail % kSlots), tail / kSlots % 2)) ReturnOldest();
    }
    for (; tail != head; ++tail) {  // aborted: only copies in flight matter, and they always land
      while (!Port::BarrierTry(this->base + FullAt(kLane, tail % kSlots), tail / kSlots % 2)) {
      }
    }
  }

 private:
  EVT_FN bool First() const { return kAlone || LaneId() == 0; }
  EVT_FN void Together() const {
    if constexpr (!kAlone) __syncwarp();
  }
  EVT_FN bool All(bool mine) const { return kAlone ? mine : __all_sync(0xffffffffu, mine) != 0; }
  EVT_FN u32 PagesAddress() const { return this->base + kSharedStateBytes + kScratchBytes; }

  // Polls until all lanes' elements have fired.
  EVT_FN bool AwaitElements(const ElementWait& wait) {
    bool fired = wait.counter == nullptr;
    for (u32 poll = 1;; ++poll) {
      // Acquires what the notifying tasks wrote; counterpart: AddRelease in NotifyElement.
      if (!fired) fired = DirectSync::LoadAcquire(wait.counter) >= wait.target;
      if (All(fired)) return true;
      if (poll % kPollsPerCheck == 0) {
        if (AllEnded(!fired, kAbortStuckEvent, wait.element, wait.target)) return false;
        ReturnDropped();
      }
    }
  }
  EVT_FN bool AwaitBarrier(u32 barrier, u32 parity) {
    for (u32 poll = 1;; ++poll) {
      if (All(Port::BarrierTry(barrier, parity))) return true;
      if (poll % kPollsPerCheck == 0 && AllEnded(First(), kAbortStuckPage, 0, 0)) return false;
    }
  }
  EVT_FN bool AllEnded(bool mine, u32 cause, u32 element, u32 target) {
    const bool ended = mine && this->Ended(kRole, cause, element, target);
    if (!All(!ended)) this->aborted_ = true;
    return this->aborted_;
  }

  // What this copy brings, and how many slots still wait for their data.
  EVT_FN void NoteCopy(u32 bytes) {
    for (u32 slot = tail; slot != head; ++slot) {
      if (!BarrierTest(this->base + FullAt(kLane, slot % kSlots), slot / kSlots % 2)) {
        ++this->timer.in_flight;
      }
    }
    this->timer.bytes += bytes;
    ++this->timer.copies;
  }

  // A free slot, and a page for it if asked for; kNoPage otherwise. A new page while the pool grants
  // one; then the lane's oldest page, once compute has dropped it: what the lane holds does not change,
  // so the pool need not know, and a full pipeline runs without atomics.
  EVT_FN i32 Acquire(bool with_page, u32 piece_bytes) {
    i32 page = kNoPage;
    for (u32 poll = 1;; ++poll) {
      if (head - tail < kSlots) {
        if (!with_page) break;
        if (patience == 0) {
          if (First()) page = this->shared.pool.TryGrant(kLane);
          if constexpr (!kAlone) page = __shfl_sync(0xffffffffu, page, 0);
          if (page != kNoPage) break;
          patience = kSlots;
        }
      }
      if (OldestDropped()) {
        if (with_page) page = LoadSlot(this->base + SlotAt(kLane, tail % kSlots)).page;
        if (page == kNoPage) {
          ReturnOldest();
          continue;
        }
        ++tail;
        if (patience > 0) --patience;
        break;
      }
      this->timer.Stalls();
      if (poll % kPollsPerCheck == 0) {
        patience = 0;
        if (AllEnded(First(), kAbortStuckPage, 0, 0)) return kNoPage;
      }
    }
    this->timer.StallEnds();
    Together();  // all lanes have read the oldest slot, which may be this one
    if (First()) StoreSlot(this->base + SlotAt(kLane, head % kSlots), SlotPage{page, piece_bytes});
    Together();
    return page;
  }
  EVT_FN void FillEmpty() {
    if (this->aborted_) return;
    Port::template ArriveWithoutData<kAlone>(this->base + FullAt(kLane, head % kSlots));
    ++head;
  }
  EVT_FN void ReturnDropped() {
    while (OldestDropped()) ReturnOldest();
  }
  EVT_FN bool OldestDropped() const {
    return tail != head &&
           All(BarrierTest(this->base + EmptyAt(kLane, tail % kSlots), tail / kSlots % 2));
  }
  EVT_FN void ReturnOldest() {
    const i32 page = LoadSlot(this->base + SlotAt(kLane, tail % kSlots)).page;
    if (page != kNoPage && First()) this->shared.pool.Return(kLane, page);
    Together();
    ++tail;
    patience = 0;
  }
};

struct GpuPage {
  u8* data;
  u32 piece_bytes;
  EVT_FN const u8* Piece(i32 i) const { return data + i * piece_bytes; }
};

template <class Port, class T, int kTokens>
class GpuLinearTile;
template <class Port, class T>
class GpuAttentionTile;

// The compute role: eight warps that run the same code on the same task. When the step is aborted
// its threads still meet at every barrier of the task in hand (waits return at once) and leave
// together at the next AwaitReady, Publish or TakeTicket, each of which votes.
template <class Port>
struct GpuCompute : GpuWorkerBase<Port> {
  using Base = GpuWorkerBase<Port>;
  template <class T, int kTokens>
  using LinearTile = GpuLinearTile<Port, T, kTokens>;
  template <class T>
  using AttentionTile = GpuAttentionTile<Port, T>;
  static constexpr i32 kGroups = kComputeWarps;
  static constexpr bool kSwizzledKv = true;
  u8* scratch;
  u32 thread = threadIdx.x;
  u32 taken[kLanes] = {0, 0};
  u32 dropped[kLanes] = {0, 0};

  __device__ GpuCompute(SharedState& state, u8* page_memory, u8* scratch_memory,
                        const ProgramRecord& record)
      : Base(state, page_memory, record), scratch(scratch_memory) {}

  EVT_FN u32 Lane() const { return thread % 32; }
  // Reads the thread anew for every task: what ops derive from it is then computed where it is
  // used, and not once at the top for all ops, in registers that none of them can spare.
  EVT_FN bool Begin(const TaskName& task) {
    asm volatile("mov.u32 %0, %tid.x;" : "=r"(thread));
    if (Leader()) this->SetTask(kRoleCompute, task);
    return true;
  }
  EVT_FN GpuPage Take(u32 lane) {
    const u32 slot = taken[lane] % kSlots;
    AwaitBarrier(this->base + FullAt(lane, slot), taken[lane] / kSlots % 2);
    ++taken[lane];
    const SlotPage page = LoadSlot(this->base + SlotAt(lane, slot));
    // After an abort the slot may hold no page: any page will do then, nothing of it is published.
    return GpuPage{this->pages + Max(page.page, 0) * kPageBytes, page.piece_bytes};
  }
  EVT_FN void Drop(u32 lane) {
    __syncwarp();
    if (Lane() == 0) BarrierArrive(this->base + EmptyAt(lane, dropped[lane] % kSlots));
    ++dropped[lane];
  }
  EVT_FN u8* Own(GpuPage& page, i32, u32, u32) { return page.data; }
  template <class F>
  EVT_FN void Parallel(i32 n, const F& f) {
    // Not unrolled: bodies are long, n is short, and code size is compile time.
#pragma unroll 1
    for (i32 i = static_cast<i32>(thread); i < n; i += kComputeThreads) f(i);
  }
  template <class Load, class Store>
  EVT_FN void RowSums(i32 rows, i32 n, const Load& load, const Store& store) {
#pragma unroll 1
    for (i32 row = static_cast<i32>(thread / 32); row < rows; row += kComputeWarps) {
      float sum = 0.0f;
#pragma unroll 4
      for (i32 i = static_cast<i32>(Lane()); i < n; i += 32) sum = Add(sum, load(row, i));
      for (u32 offset = 16; offset > 0; offset /= 2) {
        sum = Add(sum, __shfl_xor_sync(0xffffffffu, sum, offset));
      }
      if (Lane() == 0) store(row, sum);
    }
  }
  EVT_FN void Sync() {
    asm volatile("barrier.sync 1, %0;" ::"n"(kComputeThreads) : "memory");
  }
  EVT_FN bool Leader() const {
    return thread == 0;
  }
  EVT_FN u8* Scratch() {
    return scratch;
  }
  EVT_FN u32 Arrive(u32* counter) {
    Sync();
    if (Leader()) this->shared.arrivals = DirectSync::FetchAddAcqRel(counter, 1);
    Sync();
    return this->shared.arrivals;
  }
  // mma.sync m16n8k16 A fragments: lane (row % 8, k % 8 / 2), register (row / 8, k / 8), half k
  // % 2.
  static EVT_FN i32 FragmentElement(i32 row, i32 k) {
    return (row % 8 * 4 + k % 8 / 2) * 8 + (row / 8 + k / 8 * 2) * 2 + k % 2;
  }

  template <class P>
  EVT_FN bool Await(const P& p, const ElementBox& box, const TaskName&) {
    bool ended = false;
#pragma unroll 1
    for (i32 k = static_cast<i32>(thread); k < box.size(); k += kComputeThreads) {
      ended = ended || !AwaitElement(this->WaitFor(p, box, k));
    }
    return !Vote(ended);
  }
  template <class P>
  EVT_FN void Notify(const P& p, const ElementBox& box) {
#pragma unroll 1
    for (i32 k = static_cast<i32>(thread); k < box.size(); k += kComputeThreads) {
      this->NotifyElement(p, box, k);
    }
  }
  EVT_FN bool AwaitReady() {
    Take(kLaneInput);
    Drop(kLaneInput);
    return !Vote(this->aborted_);
  }
  // All threads' writes happen before the notifying thread's release (barrier), also for copies
  // that another worker's copy engine makes of them (fence).
  EVT_FN void Publish() {
    Port::FenceAfterStores();
    Vote(this->aborted_);
  }
  EVT_FN void Finished() {
    if (Leader()) this->CountFinished();
  }
  EVT_FN u32 TakeTicket(i32) {
    const u32 slot = this->tickets % kTicketSlots;
    AwaitBarrier(this->base + TicketFullAt(slot), this->tickets / kTicketSlots % 2);
    ++this->tickets;
    const u32 ticket = this->shared.ticket[slot];
    __syncwarp();
    if (Lane() == 0) BarrierArrive(this->base + TicketEmptyAt(slot));
    return Vote(this->aborted_) ? ~0u : ticket;
  }

 private:
  EVT_FN void AwaitBarrier(u32 barrier, u32 parity) {
    for (u32 poll = 1; !this->aborted_ && !Port::BarrierTry(barrier, parity); ++poll) {
      this->timer.Stalls();
      if (poll % kPollsPerCheck == 0) {
        this->aborted_ = this->Ended(kRoleCompute, kAbortStuckPage, 0, 0);
      }
    }
    this->timer.StallEnds();
  }
  EVT_FN bool AwaitElement(const ElementWait& wait) {
    for (u32 poll = 1; DirectSync::LoadAcquire(wait.counter) < wait.target; ++poll) {
      if (poll % kPollsPerCheck == 0 &&
          this->Ended(kRoleCompute, kAbortStuckEvent, wait.element, wait.target)) {
        return false;
      }
    }
    return true;
  }
  // A barrier that tells everyone whether anyone has to leave.
  EVT_FN bool Vote(bool ended) {
    u32 any;
    asm volatile(
        "{ .reg .pred p, q; setp.ne.u32 p, %1, 0;\n"
        "barrier.red.or.pred q, 1, %2, p; selp.u32 %0, 1, 0, q; }"
        : "=r"(any)
        : "r"(static_cast<u32>(ended)), "n"(kComputeThreads)
        : "memory");
    this->aborted_ = any != 0;
    return this->aborted_;
  }
};

// The watch warp: ends the step when it was aborted elsewhere, or when no task has finished
// anywhere for the timeout; then tells the story of the role that waits here. Leaves when the
// working warps are through.
template <class Port>
EVT_FN void Watch(SharedState& shared, const ProgramRecord& program) {
  AbortRecord* record = reinterpret_cast<AbortRecord*>(program.abort);
  ProgressWatch<DirectSync> watch;
  for (u32 poll = 1; !Port::BarrierTry(SharedAddress(&shared.finished), 0); ++poll) {
    if (poll % kPollsPerCheck != 0) continue;
    bool ended = DirectSync::LoadRelaxed(&record->cause) != kAbortNone;
    if (!ended && watch.Stalled(program, 1, NowNs(), shared.step.header->timeout_ns)) {
      // The input role's wait explains the others; a worker that waits for nothing leaves the story
      // to one that does, unless none comes forward.
      u32 role = kRoleInput;
      if (shared.waiting[role].cause == kAbortNone) role = kRoleStream;
      if (shared.waiting[role].cause == kAbortNone) role = kRoleCompute;
      const volatile Waiting& waiting = shared.waiting[role];
      AbortRecord story = {};
      story.cause = waiting.cause == kAbortNone ? u32{kAbortStuckPage} : waiting.cause;
      story.worker = blockIdx.x;
      story.role = role;
      story.grid = waiting.grid;
      story.layer = waiting.at.layer;
      for (int i = 0; i < kMaxCoords; ++i) story.at[i] = waiting.at.at[i];
      story.event = waiting.element;
      story.expected = waiting.target;
      story.seen = waiting.cause == kAbortStuckEvent
                       ? DirectSync::LoadRelaxed(CounterAt(program, shared.step.header->bank,
                                                           static_cast<i32>(story.event)))
                       : 0;
      ReportAbort<DirectSync>(record, story);
      ended = true;
    }
    if (ended) *static_cast<volatile u32*>(&shared.ended) = 1;
  }
}

// Brings the node records into shared memory; `program` then points at them there.
template <class P>
EVT_FN void ShareNodes(const P& p, SharedState& shared, const ProgramRecord& record) {
  const int last = p.Sections() - 1;
  const i32 grids = last < 0 ? 0 : p.FirstGrid(last) + p.GridCount(last);
  constexpr u32 kWords = sizeof(Node) / 4;
  bool fit = true;
#pragma unroll 1
  for (i32 grid = 0; grid < grids; ++grid) {
    const i32 node = p.NodeIndex(grid);
    fit = fit && node < kSharedNodes;
    if (node < 0 || node >= kSharedNodes) continue;
    const u32* from = reinterpret_cast<const u32*>(record.nodes) + static_cast<u32>(node) * kWords;
    u32* to = reinterpret_cast<u32*>(&shared.nodes[node]);
#pragma unroll 1
    for (u32 i = threadIdx.x; i < kWords; i += kThreads) to[i] = from[i];
  }
  if (fit && threadIdx.x == 0) shared.program.nodes = reinterpret_cast<u64>(&shared.nodes[0]);
}

// Entry of every worker: sets up shared memory, derives the step's dims, clears the other counter
// bank's slice, then becomes its role.
template <class Port, class P>
EVT_FN void RunWorkerOn(const ProgramRecord& record, const StepHeader* header, u8* memory) {
  constexpr bool kTimeline = kRecordsTimeline<P>;
  using Roles = typename PortOf<Port, kTimeline>::Type;
  u32 dynamic_bytes;
  asm("mov.u32 %0, %dynamic_smem_size;" : "=r"(dynamic_bytes));
  const u32 page_count = (dynamic_bytes - kScratchBytes - kSharedStateBytes) / kPageBytes;
  SharedState& shared = *reinterpret_cast<SharedState*>(memory);
  u8* scratch = memory + kSharedStateBytes;
  u8* pages = scratch + kScratchBytes;
  const P p{shared.program};
  if (threadIdx.x == 0) {
    shared.program = record;
#pragma unroll 1
    for (u32 lane = 0; lane < kLanes; ++lane) {
#pragma unroll 1
      for (u32 slot = 0; slot < kSlots; ++slot) {
        BarrierInit(SharedAddress(&shared.full[lane][slot]), Port::kFullArrivals);
        BarrierInit(SharedAddress(&shared.empty[lane][slot]), kComputeWarps);
      }
    }
#pragma unroll 1
    for (u32 slot = 0; slot < kTicketSlots; ++slot) {
      BarrierInit(SharedAddress(&shared.ticket_full[slot]), 1);
      BarrierInit(SharedAddress(&shared.ticket_empty[slot]), 1 + kComputeWarps);  // input warp, compute warps
    }
    BarrierInit(SharedAddress(&shared.finished), kWorkingWarps);
    Port::FenceAfterBarrierInit();
    shared.ended = 0;
    for (u32 role = 0; role < kRoles; ++role) shared.waiting[role].cause = kAbortNone;
    // Each lane may always have its floor; the input lane gets a quarter of the pool if that is
    // more.
    shared.pool.Reset(page_count, Max(P::kStreamFloor, 1u),
                      Max(Max(P::kInputFloor, 1u), page_count / 4));
    shared.sum_of_rows = 0;
    shared.step.header = header;
  }
  __syncthreads();
  ShareNodes(p, shared, record);
  const u32 rows = header->rows;
  i32 sum = 0;
#pragma unroll 1
  for (u32 r = threadIdx.x; r < rows; r += kThreads) {
    sum += QueryLength(shared.step.Rows()[r], shared.step.Slots(), header->step);
  }
  if (sum != 0) atomicAdd(&shared.sum_of_rows, sum);
  __syncthreads();
  if (threadIdx.x == 0) {
#pragma unroll 1
    for (u32 i = 0; i < header->symbol_count; ++i) {
      const i32 value = header->symbols[i];
      shared.step.symbols[i] = value == kSumOfRows ? shared.sum_of_rows : value;
    }
    p.EvaluateDims(shared.step);
  }
  const ProgramRecord& program = shared.program;
  // The other bank is next step's; the kernel boundary orders these stores before it.
  const u64 elements = program.bank_bytes / kEventStrideBytes;
#pragma unroll 1
  for (u64 i = u64{blockIdx.x} * kThreads + threadIdx.x; i < elements;
       i += u64{gridDim.x} * kThreads) {
    *CounterAt(program, 1 - header->bank, static_cast<i32>(i)) = 0;
  }
  __syncthreads();
  const u32 warp = threadIdx.x / 32;
  if (warp < kComputeWarps) {
    Port::TakeRegisters();
    GpuCompute<Roles> compute(shared, pages, scratch, program);
    if constexpr (kTimeline) compute.TimeStep(kRoleCompute);
    RunCompute(p, compute);
    if constexpr (kTimeline) compute.TimeStepEnd();
  } else {
    Port::GiveRegisters();
    if (warp == kStreamWarp) {
      using Stream = GpuProducer<Roles, kLaneStream>;
      if (!Stream::kAlone || LaneId() == 0) {
        Stream stream(shared, pages, program);
        if constexpr (kTimeline) stream.TimeStep(kRoleStream);
        RunStream(p, stream);
        if constexpr (kTimeline) stream.TimeStepEnd();
        stream.Drain();
      }
    } else if (warp == kInputWarp) {
      GpuProducer<Roles, kLaneInput> input(shared, pages, program);
      if constexpr (kTimeline) input.TimeStep(kRoleInput);
      RunInput(p, input);
      if constexpr (kTimeline) input.TimeStepEnd();
      input.Drain();
    } else if (warp == kWatchWarp && LaneId() == 0) {
      Watch<Port>(shared, program);
    }
  }
  __syncwarp();
  if (warp < kWorkingWarps && LaneId() == 0) BarrierArrive(SharedAddress(&shared.finished));
}

}  // namespace eventide
