// The compute role of a GPU worker: pages consumed, threads in step, events notified. See nvidia.cuh.
#pragma once

#include "device/arch/nvidia.cuh"

namespace eventide {

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
    if (Leader()) {
      this->SetTask(kRoleCompute, task);
      this->SetCause(kRoleCompute, kAbortStuckTask);
    }
    return true;
  }
  EVT_FN GpuPage Take(u32 lane) {
    const u32 slot = taken[lane] % kSlots;
    AwaitBarrier(this->base + FullAt(lane, slot), taken[lane] / kSlots % 2, kAbortStuckPage);
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
  EVT_FN bool Await(const P& p, const ElementBox& box, const TaskName& task) {
    bool ended = false;
#pragma unroll 1
    for (i32 k = static_cast<i32>(thread); k < box.size(); k += kComputeThreads) {
      ended = ended || !AwaitElement(this->WaitFor(p, box, k), task);
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
    AwaitBarrier(this->base + TicketFullAt(slot), this->tickets / kTicketSlots % 2,
                 kAbortStuckRole);
    ++this->tickets;
    const u32 ticket = this->shared.ticket[slot];
    __syncwarp();
    if (Lane() == 0) BarrierArrive(this->base + TicketEmptyAt(slot));
    return Vote(this->aborted_) ? ~0u : ticket;
  }

 private:
  EVT_FN void AwaitBarrier(u32 barrier, u32 parity, u32 cause) {
    for (u32 poll = 1; !this->aborted_ && !Port::BarrierTry(barrier, parity); ++poll) {
      this->timer.Stalls();
      if (poll % kPollsPerCheck == 0) {
        this->aborted_ = this->Ended(kRoleCompute, cause, 0, 0);
      }
    }
    this->timer.StallEnds();
  }
  EVT_FN bool AwaitElement(const ElementWait& wait, const TaskName& task) {
    for (u32 poll = 1; DirectSync::LoadAcquire(wait.counter) < wait.target; ++poll) {
      if (poll % kPollsPerCheck != 0) continue;
      this->SetTask(kRoleCompute, task);  // not begun: it waits for its grid's extent
      if (this->Ended(kRoleCompute, kAbortStuckEvent, wait.element, wait.target)) return false;
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

}  // namespace eventide
