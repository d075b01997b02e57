// The producer roles of a GPU worker: pages granted, filled and taken back. See nvidia.cuh.
#pragma once

#include "device/arch/nvidia.cuh"

namespace eventide {

// A producer role. Grants pages in order, copies, takes back what compute has dropped. The stream role is
// one thread where one thread can issue copies (kAlone); else, and for the input role, which polls many
// events at once, it is a warp in which every decision is taken by all lanes together, but for what it leaves
// to one of them (ByOne).
template <class Port, u32 kLane, bool kOneThread>
struct GpuProducer : GpuWorkerBase<Port> {
  using Base = GpuWorkerBase<Port>;
  static constexpr u32 kRole = kLane == kLaneStream ? kRoleStream : kRoleInput;
  static constexpr bool kAlone = kOneThread;
  static constexpr bool kFollows = kLane == kLaneInput;
  u32 head = 0;      // slots asked for
  u32 tail = 0;      // slots taken back
  u32 followed = 0;  // tasks handed over, by the input role
  u32 patience = 0;  // pages still to be had from dropped slots before the pool is asked again

  using Base::Base;

  EVT_FN bool Begin(const TaskName& task) {
    if (First()) {
      this->SetTask(kRole, task);
      this->SetCause(kRole, kAbortStuckTask);
    }
    return true;
  }
  template <class Source>
  EVT_FN void Copy(const CopyShape& shape, const Source& source) {
    AwaitArrived();
    const i32 page = Acquire(true, shape.bytes);
    if (this->aborted_) return;
    Port::template CopyPieces<kAlone>(PagesAddress() + static_cast<u32>(page) * kPageBytes, shape,
                                      source, this->base + FullAt(kLane, head % kSlots));
    ++head;
    if constexpr (kRecordsTimeline<Port>) NoteCopy(shape.Size());
  }
  // A box of `bytes` bytes, in pieces that are piece_bytes apart; what lies beyond the tensor is zeros.
  EVT_FN void CopyBox(u64 map, const BoxAt& at, u32 bytes, u32 piece_bytes) {
    static_assert(kAlone, "one thread's work");
    AwaitArrived();
    const i32 page = Acquire(true, piece_bytes);
    if (this->aborted_) return;
    Port::CopyBox(PagesAddress() + static_cast<u32>(page) * kPageBytes, map, at, bytes,
                  this->base + FullAt(kLane, head % kSlots));
    ++head;
    if constexpr (kRecordsTimeline<Port>) NoteCopy(bytes);
  }
  // f(producer), by one thread where one can issue copies: page after page, it needs no votes.
  template <class F>
  EVT_FN void ByOne(const F& f) {
    if constexpr (kAlone || !Port::kOneThreadCopies) {
      f(*this);
    } else {
      GpuProducer<Port, kLane, true> one(this->shared);
      one.Continue(*this);
      __syncwarp();
      const bool elected = Port::ElectOne();
      if (elected) f(one);
      __syncwarp();  // or each of the following would bring the lanes together by itself
      const i32 from = __ffs(static_cast<i32>(__ballot_sync(0xffffffffu, elected))) - 1;
      head = __shfl_sync(0xffffffffu, one.head, from);
      tail = __shfl_sync(0xffffffffu, one.tail, from);
      patience = __shfl_sync(0xffffffffu, one.patience, from);
      this->aborted_ = __shfl_sync(0xffffffffu, static_cast<i32>(one.aborted_), from) != 0;
    }
  }
  // Where another producer of this lane is.
  template <class Producer>
  EVT_FN void Continue(const Producer& other) {
    head = other.head;
    tail = other.tail;
    followed = other.followed;
    patience = other.patience;
    this->aborted_ = other.aborted_;
  }
  // One lane's 16 bytes at a time: too little for bulk copies, and rows of 8 are no run in memory. Each lane
  // asks for the address of one row.
  template <class Source>
  EVT_FN void CopyRows(i32 rows, u32 bytes, u32 unit, const Source& source) {
    static_assert(!kAlone, "a warp's work");
    const i32 page = Acquire(true, bytes);
    if (this->aborted_) return;
    const i32 lane = static_cast<i32>(LaneId());
    const u64 mine = lane < rows ? reinterpret_cast<u64>(source(lane)) : 0;
    const u32 to = PagesAddress() + static_cast<u32>(page) * kPageBytes;
#pragma unroll 1
    for (i32 r = 0; r < rows; ++r) {
      const u64 from = __shfl_sync(0xffffffffu, mine, r);
      const u32 row = to + static_cast<u32>(r / 8) * bytes + static_cast<u32>(r % 8) * unit;
#pragma unroll 1
      for (u32 at = LaneId() * 16; at < bytes / 8; at += 512) {
        const u32 offset = at / unit * unit * 8 + at % unit;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(row + offset),
                     "l"(from + offset)
                     : "memory");
      }
    }
    Port::ArriveWhenCopied(this->base + FullAt(kLane, head % kSlots));
    ++head;
    if constexpr (kRecordsTimeline<Port>) NoteCopy(static_cast<u32>(rows) * (bytes / 8));
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
  EVT_FN bool Await(const P& p, const ElementBox& box, const TaskName& task) {
    ReturnDropped();
    const i32 size = box.size();
#pragma unroll 1
    for (i32 first = 0; first < size; first += kAlone ? 1 : 32) {
      const i32 k = first + (kAlone ? 0 : static_cast<i32>(LaneId()));
      ElementWait wait = {};
      if (k < size) wait = this->WaitFor(p, box, k);
      if (!AwaitElements(wait, task)) return false;
    }
    EndAwait();
    return true;
  }
  // Gates only (the input role): everything was acquired by this warp, so its lanes may release.
  EVT_FN void Finished() {
    if (First()) this->CountFinished();
  }

  // The stream role draws tickets and hands them to the walk warp.
  EVT_FN u32 TakeTicket(i32 element) {
    SharedState& shared = this->shared;
    const u32 slot = this->tickets % kTicketSlots;
    const u32 parity = this->tickets / kTicketSlots % 2;
    ++this->tickets;
    if (!AwaitBarrier(this->base + TicketEmptyAt(slot), parity ^ 1)) return ~0u;
    u32 ticket = 0;
    if (First()) {
      ticket = DirectSync::FetchAddRelaxed(
          CounterAt(this->program, this->step.header->bank, element), 1);
      shared.ticket[slot] = ticket;
      BarrierArrive(this->base + TicketFullAt(slot));
    }
    return kAlone ? ticket : __shfl_sync(0xffffffffu, ticket, 0);
  }

  // The input role: the next task that the walk warp hands over; grid < 0: there are no more, or the step has ended.
  EVT_FN TaskName Next(u32& flags) {
    const u32 slot = Slot();
    for (u32 poll = 1; !All(Port::BarrierTry(this->base + BegunAt(slot), followed / kHandedSlots % 2)); ++poll) {
      if (poll % kPollsPerCheck != 0) continue;
      if (!All(!this->HasEnded())) return TaskName{-1, {}};
      ReturnDropped();
    }
    const Handed& from = this->shared.handed[slot];
    flags = from.flags;
    const TaskName task = from.task;
    if (task.grid >= 0 && First()) {
      this->SetTask(kRole, task);
      this->SetCause(kRole, kAbortStuckTask);
    }
    return task;
  }
  // Its events.
  EVT_FN bool AwaitHanded(const TaskName& task) {
    ReturnDropped();
    const Handed& from = this->shared.handed[Slot()];
    const i32 lane = static_cast<i32>(LaneId());
    ElementWait wait = {};
    if (lane < from.waits) {
      wait.element = from.element[lane];
      wait.target = from.target[lane];
      wait.counter = CounterAt(this->program, this->step.header->bank, static_cast<i32>(wait.element));
    }
    if (!AwaitElements(wait, task)) return false;
    EndAwait();
    return true;
  }
  // Its copies, if they have been handed over, too: what is on the way from an event to a result lies in one place.
  EVT_FN bool CopyHanded() {
    const Handed& of = this->shared.handed[Slot()];
    if (of.times == 0) return false;
    ByOne([&](auto& one) {
#pragma unroll 1
      for (i32 left = of.times; left > 0; --left) {
#pragma unroll 1
        for (u32 at = 0; at < of.bytes; at += of.page_bytes) {
          one.Copy(CopyShape::Of(1, Min(of.page_bytes, of.bytes - at)),
                   [&](i32, i32) { return reinterpret_cast<const u8*>(of.from) + at; });
        }
      }
    });
    return true;
  }
  EVT_FN u32 Slot() const { return followed % kHandedSlots; }
  EVT_FN u8* Prepared() const { return this->PreparedOf(Slot()); }
  EVT_FN void Through() {
    __syncwarp();  // all lanes have read what was handed over
    if (LaneId() == 0) {
      this->SetCause(kRole, kAbortNone);  // it waits for the walk warp, which tells what that waits for
      BarrierArrive(this->base + SentAt(Slot()));
    }
    ++followed;
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
  // The lanes' acquires reach the lane that issues copies through the warp's votes; what ordinary
  // stores wrote may then be read by the copy engine.
  EVT_FN void EndAwait() {
    Together();
    Port::FenceBeforeCopyFromGlobal();
  }
  EVT_FN bool First() const { return kAlone || LaneId() == 0; }
  EVT_FN void Together() const {
    if constexpr (!kAlone) __syncwarp();
  }
  EVT_FN bool All(bool mine) const { return kAlone ? mine : __all_sync(0xffffffffu, mine) != 0; }
  EVT_FN u32 PagesAddress() const { return this->base + kPagesAt; }

  // Polls until all lanes' elements have fired.
  EVT_FN bool AwaitElements(const ElementWait& wait, const TaskName& task) {
    bool fired = wait.counter == nullptr;
    for (u32 poll = 1;; ++poll) {
      // Acquires what the notifying tasks wrote; counterpart: AddRelease in NotifyElement.
      if (!fired) fired = DirectSync::LoadAcquire(wait.counter) >= wait.target;
      if (All(fired)) return true;
      if (poll % kPollsPerCheck == 0) {
        // The first of the lanes that wait tells. The task may not have begun: it waits for an extent.
        const bool mine = kAlone || LaneId() + 1 == __ffs(__ballot_sync(0xffffffffu, !fired));
        if (mine) this->SetTask(kRole, task);
        if (AllEnded(mine && this->EndedAt(kRole, wait.element, wait.target))) return false;
        ReturnDropped();
      }
    }
  }
  EVT_FN bool AwaitBarrier(u32 barrier, u32 parity) {
    for (u32 poll = 1;; ++poll) {
      if (All(Port::BarrierTry(barrier, parity))) return true;
      if (poll % kPollsPerCheck == 0 && AllEnded(First() && this->Ended(kRole, kAbortStuckRole))) return false;
    }
  }
  EVT_FN bool AllEnded(bool ended) {
    if (!All(!ended)) this->aborted_ = true;
    return this->aborted_;
  }

  // More copies under way than keep the memory busy queue up in front of it, and behind them whatever else this and
  // other workers ask for: events that are awaited and told, activations. Every copy arrives.
  EVT_FN void AwaitArrived() const {
    if constexpr (kLane == kLaneStream) {
      if (head < kUnderWay) return;
      const u32 before = head - kUnderWay;
      while (!All(Port::BarrierTry(this->base + FullAt(kLane, before % kSlots), before / kSlots % 2))) {
      }
    }
  }

  // What this copy brings, and, for one of kSlots copies, how many slots still wait for their data: looking at them
  // takes longer than the copy, and a recorded step should be like others.
  EVT_FN void NoteCopy(u32 bytes) {
    if (!First()) return;
    TaskTimer& notes = this->Notes();
    if (head % kSlots == 0) {
      for (u32 slot = tail; slot != head; ++slot) {
        if (!BarrierTest(this->base + FullAt(kLane, slot % kSlots), slot / kSlots % 2)) notes.in_flight += kSlots;
      }
    }
    notes.bytes += bytes;
    ++notes.copies;
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
      this->Stalls(First());
      if (poll % kPollsPerCheck == 0) {
        patience = 0;
        if (AllEnded(First() && this->Ended(kRole, kAbortStuckPage))) return kNoPage;
      }
    }
    this->StallEnds(First());
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

}  // namespace eventide
