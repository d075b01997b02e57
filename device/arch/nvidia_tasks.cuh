// How a GPU worker's tasks reach its roles. One warp walks the program and hands tasks over, some ahead, with all that
// can be known before their events fire: what the tasks' own roles would work out one after the other, each on the way
// from an event to a result. Input, compute and notify follow it. The stream role, which runs much further ahead, walks
// by itself. See nvidia.cuh.
#pragma once

#include "device/arch/nvidia_compute.cuh"
#include "device/arch/nvidia_producer.cuh"

namespace eventide {

// The walk warp: every decision is taken by all lanes together.
template <class Port>
struct GpuWalker : GpuWorkerBase<Port> {
  using Base = GpuWorkerBase<Port>;
  static constexpr bool kPrepares = true;  // Compute's part of an op is Prepare here (device/dispatch.h)
  u32 handed = 0;  // tasks

  using Base::Base;

  EVT_FN u32 Slot() const { return handed % kHandedSlots; }
  EVT_FN u8* Prepared() const { return this->PreparedOf(Slot()); }
  EVT_FN bool Leader() const { return LaneId() == 0; }

  // Publications; a task's events are left to the input role.
  template <class P>
  EVT_FN bool Await(const P& p, const ElementBox& box, const TaskName& task) {
    const i32 size = box.size();
#pragma unroll 1
    for (i32 first = 0; first < size; first += 32) {
      const i32 k = first + static_cast<i32>(LaneId());
      ElementWait wait = {};
      if (k < size) wait = this->WaitFor(p, box, k);
      bool fired = wait.counter == nullptr;
      for (u32 poll = 1;; ++poll) {
        // Acquires what the notifying tasks wrote; counterpart: AddRelease in Notify.
        if (!fired) fired = DirectSync::LoadAcquire(wait.counter) >= wait.target;
        if (__all_sync(0xffffffffu, fired)) break;
        if (poll % kPollsPerCheck != 0) continue;
        // The input role tells, once it has no task of its own.
        if (!fired && (handed == 0 || BarrierTest(this->base + SentAt((handed - 1) % kHandedSlots),
                                                  (handed - 1) / kHandedSlots % 2))) {
          this->SetTask(kRoleInput, task);
          this->EndedAt(kRoleInput, wait.element, wait.target);
        }
        if (End()) return false;
      }
    }
    __syncwarp();
    return true;
  }
  EVT_FN u32 TakeTicket(i32) {
    const u32 slot = this->tickets % kTicketSlots;
    if (!AwaitBarrier(this->base + TicketFullAt(slot), this->tickets / kTicketSlots % 2)) return ~0u;
    ++this->tickets;
    const u32 ticket = this->shared.ticket[slot];
    __syncwarp();
    if (Leader()) BarrierArrive(this->base + TicketEmptyAt(slot));
    return ticket;
  }

  // Hands a task over, with the elements it waits for; if they are too many for it, others before it have some.
  template <class P>
  EVT_FN bool Hand(const P& p, const TaskName& task, u32 flags) {
    if (!Open()) return false;
    const i32 waits = p.Waits(task.grid);
    i32 count = 0;
#pragma unroll 1
    for (i32 i = 0; i < waits; ++i) {
      const ElementBox box = p.WaitBox(this->step, task.grid, task.at, i);
      const i32 size = box.size();
#pragma unroll 1
      for (i32 first = 0; first < size;) {
        if (count == kHandedWaits) {
          Close(task, Handed::kWaitsOnly, count);
          if (!Open()) return false;
          count = 0;
        }
        const i32 n = Min(size - first, kHandedWaits - count), lane = static_cast<i32>(LaneId());
        if (lane < n) {
          Handed& to = this->shared.handed[Slot()];
          const ElementWait wait = this->WaitFor(p, box, first + lane);
          to.element[count + lane] = wait.element;
          to.target[count + lane] = wait.target;
        }
        first += n;
        count += n;
      }
    }
    if (Leader()) this->shared.handed[Slot()].times = 0;
    p.Compute(*this, this->step, task.grid, task.at);
    Close(task, flags, count);
    return true;
  }
  // By an op that prepares: the input role need not ask it.
  EVT_FN void HandCopies(const void* from, u32 page_bytes, u32 bytes, i32 times) {
    if (!Leader()) return;
    Handed& to = this->shared.handed[Slot()];
    to.from = reinterpret_cast<u64>(from);
    to.page_bytes = page_bytes;
    to.bytes = bytes;
    to.times = times;
  }
  // There are no more tasks, or the step has ended. Compute waits for nothing else here.
  EVT_FN void HandEnd() {
    if (!this->aborted_) Open();
    if (!this->aborted_) return Close(TaskName{-1, {}}, 0, 0);
    if (handed >= kHandedSlots) {
      while (!Port::BarrierTry(this->base + DoneAt(Slot()), handed / kHandedSlots % 2 ^ 1)) {
        if (*static_cast<volatile u32*>(&this->shared.left) != 0) break;
      }
    }
    __syncwarp();
    if (Leader()) {
      // One word: the input role may still be at the task that this slot had, and must see that or the end, no mixture.
      *static_cast<volatile i32*>(&this->shared.handed[Slot()].task.grid) = -1;
      BarrierArrive(this->base + BegunAt(Slot()));
    }
  }

 private:
  // Everyone is through with the task that was handed over in this slot before.
  EVT_FN bool Open() { return AwaitBarrier(this->base + SentAt(Slot()), handed / kHandedSlots % 2 ^ 1); }
  EVT_FN void Close(const TaskName& task, u32 flags, i32 waits) {
    __syncwarp();
    if (Leader()) {
      Handed& to = this->shared.handed[Slot()];
      to.task = task;
      to.flags = flags;
      to.waits = waits;
      BarrierArrive(this->base + BegunAt(Slot()));
    }
    __syncwarp();
    ++handed;
  }
  EVT_FN bool AwaitBarrier(u32 barrier, u32 parity) {
    for (u32 poll = 1; !__all_sync(0xffffffffu, Port::BarrierTry(barrier, parity)); ++poll) {
      if (poll % kPollsPerCheck == 0 && End()) return false;
    }
    return true;
  }
  EVT_FN bool End() {
    this->aborted_ = __any_sync(0xffffffffu, this->HasEnded()) != 0;
    return this->aborted_;
  }
};

template <class P, class W>
EVT_FN void RunWalk(const P& p, W& w) {
  const auto enter = [](i32, const Coord&, u32) { return true; };
  WalkTasks<TaskWaits::kIndices>(p, w, enter, [&](i32 grid, const Coord& at, u32 flags) {
    return w.Hand(p, TaskName{grid, at}, flags);
  });
  w.HandEnd();
}

// RunInput of loop.h, for a role that follows.
template <class P, class W>
EVT_FN void FollowInput(const P& p, W& w) {
#pragma unroll 1
  for (;;) {
    u32 flags = 0;
    const TaskName task = w.Next(flags);
    if (task.grid < 0) return;
    const bool waits_only = (flags & Handed::kWaitsOnly) != 0;
    if (!waits_only) MarkStart<P>(w, task);
    if (!w.AwaitHanded(task)) return;
    if (!waits_only) {
      MarkReady<P>(w);
      if (flags & GridTurn::kGate) {
        PassGate(p, w, task.grid, task.at);
        w.Finished();
      } else {
        w.Ready();
        if (!w.CopyHanded()) p.Input(w, w.step, task.grid, task.at);
      }
      MarkEnd<P>(w);
    }
    if (w.aborted()) return;
    w.Through();
  }
}

// RunCompute of loop.h, for a role that follows.
template <class P, class W>
EVT_FN void FollowCompute(const P& p, W& w) {
#pragma unroll 1
  for (;;) {
    u32 flags = 0;
    const TaskName task = w.Next(flags);
    if (task.grid < 0) return;
    if (flags & (Handed::kWaitsOnly | GridTurn::kGate)) {
      w.Pass();
      continue;
    }
    MarkStart<P>(w, task);
    if ((flags & GridTurn::kEarly) == 0 && !w.AwaitReady()) return;
    p.Compute(w, w.step, task.grid, task.at);
    if (w.Leaves()) return;
    w.Done();
    MarkEnd<P>(w);
  }
}

// What each role of this worker is at, for the host. Relaxed stores: whoever tells sends notifies, too, and no plain
// store of its own may look as if it came before one (tests/support/ptx_lint.h).
EVT_FN void TellWaits(SharedState& shared, const ProgramRecord& program) {
  const auto tell = [](auto& to, u32 value) { DirectSync::StoreRelaxed(reinterpret_cast<u32*>(&to), value); };
#pragma unroll 1
  for (u32 role = 0; role < kRoles; ++role) {
    const volatile Waiting& waiting = shared.waiting[role];
    AbortRecord& record = AbortRecordOf(program, blockIdx.x, role);
    const u32 cause = waiting.cause, event = waiting.element, expected = waiting.target;
    TaskName task = {waiting.grid, {waiting.at.layer, {waiting.at.at[0], waiting.at.at[1], waiting.at.at[2]}}};
    if (role == kRoleCompute) task = shared.handed[expected % kHandedSlots].task;
    tell(record.cause, cause);
    tell(record.worker, blockIdx.x);
    tell(record.role, role);
    tell(record.grid, static_cast<u32>(task.grid));
    tell(record.layer, static_cast<u32>(task.at.layer));
    for (int i = 0; i < kMaxCoords; ++i) tell(record.at[i], static_cast<u32>(task.at.at[i]));
    tell(record.event, event);
    tell(record.expected, expected);
    if (cause == kAbortStuckEvent) {
      tell(record.seen, DirectSync::LoadRelaxed(
                            CounterAt(program, shared.step.header->bank, static_cast<i32>(event))));
    }
  }
}

// The notify warp: sends the notifies of the tasks that compute has done, in order. Whom to notify it works out while
// the task runs. While it waits, it watches: it ends the step when no task has finished anywhere for the timeout, or
// when another worker has found that.
template <class Port>
struct GpuNotifier : GpuWorkerBase<Port> {
  ProgressWatch<DirectSync> watch;
  u32 polls = 0;

  using GpuWorkerBase<Port>::GpuWorkerBase;

  template <class P>
  EVT_FN void Run(const P& p) {
    SharedState& shared = this->shared;
#pragma unroll 1
    for (u32 number = 0;; ++number) {
      const u32 slot = number % kHandedSlots, parity = number / kHandedSlots % 2;
      if (!AwaitBarrier(this->base + BegunAt(slot), parity)) return;
      const TaskName task = shared.handed[slot].task;
      const u32 flags = shared.handed[slot].flags;
      if (task.grid < 0) return;
      const bool sends = (flags & (Handed::kWaitsOnly | GridTurn::kGate)) == 0;
      const int notifies = sends ? p.Notifies(task.grid) : 0;
      bool waits = true;
#pragma unroll 1
      for (int i = 0; waits || i < notifies; ++i) {
        ElementBox box = {};
        if (i < notifies) box = p.NotifyBox(this->step, task.grid, task.at, i);
#pragma unroll 1
        for (i32 k = static_cast<i32>(LaneId()); waits || k - static_cast<i32>(LaneId()) < box.size(); k += 32) {
          u32* counter = k < box.size() ? this->CounterOf(p, box, k) : nullptr;
          // Acquires the compute warps' writes.
          if (waits && !AwaitBarrier(this->base + DoneAt(slot), parity)) return;
          waits = false;
          if (counter != nullptr) DirectSync::AddRelease(counter, 1);
        }
      }
      __syncwarp();
      if (LaneId() == 0) {
        if (sends) this->CountFinished();
        BarrierArrive(this->base + SentAt(slot));
      }
    }
  }

 private:
  EVT_FN bool AwaitBarrier(u32 barrier, u32 parity) {
#pragma unroll 1
    while (!Port::BarrierTry(barrier, parity)) {
      if (LaneId() == 0 && ++polls % kPollsPerWatch == 0 && Watch()) return false;
      if (this->HasEnded()) return false;
    }
    // A step that has ended may have cut a wait short: what was computed then must not be announced.
    return !this->HasEnded();
  }
  // Whether it has ended the step.
  EVT_FN bool Watch() {
    const ProgramRecord& program = this->program;
    if (DirectSync::LoadRelaxed(AbortWord(program)) == 0) {
      if (!watch.Stalled(program, 1, NowNs(), this->step.header->timeout_ns)) return false;
      DirectSync::StoreRelaxed(AbortWord(program), 1);
    }
    // Before any role here leaves and forgets what it waited for.
    TellWaits(this->shared, program);
    *static_cast<volatile u32*>(&this->shared.ended) = 1;
    return true;
  }
};

}  // namespace eventide
