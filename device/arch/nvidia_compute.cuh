// The compute role of a GPU worker: pages consumed, threads in step, events notified. See nvidia.cuh.
#pragma once

#include "device/arch/nvidia.cuh"

namespace eventide {

struct GpuPage {
  u8* data;
  u32 piece_bytes;
  EVT_FN const u8* Piece(i32 i) const { return data + i * piece_bytes; }
};

// Loads of shared memory that a full barrier guards: they stay behind it (volatile, memory).
EVT_FN uint4 LoadShared16(u32 address) {
  uint4 r;
  asm volatile("ld.shared::cta.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
               : "r"(address)
               : "memory");
  return r;
}

// The compute role: eight warps that run the same code on the same task. When the step is aborted
// its threads still meet at every barrier of the task in hand (waits return after one try) and leave
// together at the next AwaitReady, which votes.
template <class Port>
struct GpuCompute : GpuWorkerBase<Port> {
  using Base = GpuWorkerBase<Port>;
  static constexpr bool kFollows = true;
  u32 thread = threadIdx.x;
  u32 taken[kLanes] = {0, 0};
  u32 dropped[kLanes] = {0, 0};
  u32 begun = 0;  // tasks handed over
  // Whether this thread knows that the step is aborted, or all do, and leave. In one register.
  enum End : u32 { kGoesOn, kAborted, kLeaves };
  u32 end = kGoesOn;

  using Base::Base;

  EVT_FN bool Leaves() const { return end == kLeaves; }
  EVT_FN u32 Lane() const { return thread % 32; }
  static EVT_FN float Exchange(float value, u32 distance) { return __shfl_xor_sync(0xffffffffu, value, distance); }
  // The next task that the walk warp hands over; grid < 0: there are no more. The wait has no other end, so that all
  // threads have the same tasks: the walk warp ends it when the step has ended.
  EVT_FN TaskName Next(u32& flags) {
    // Read anew for every task: what ops derive from it is then computed where it is used, and not once at the top for
    // all ops, in registers that none of them can spare.
    asm volatile("mov.u32 %0, %tid.x;" : "=r"(thread));
    for (u32 poll = 1; !Port::BarrierTry(this->base + BegunAt(Slot()), begun / kHandedSlots % 2); ++poll) {
      if (poll % kPollsPerCheck == 0) this->SetCause(kRoleCompute, kAbortStuckRole);
    }
    if (Leader()) {
      volatile Waiting* waiting = &this->shared.waiting[kRoleCompute];
      waiting->target = Slot();
      waiting->cause = kAbortStuckTask;
    }
    const Handed& from = this->shared.handed[Slot()];
    flags = from.flags;
    return from.task;
  }
  EVT_FN u32 Slot() const { return begun % kHandedSlots; }
  EVT_FN u8* Prepared() const { return this->PreparedOf(Slot()); }
  EVT_FN GpuPage Take(u32 lane) {
    const uint2 page = TakeShared(lane);
    return GpuPage{this->pages + (page.x - PagesAddress()), page.y};
  }
  EVT_FN void Drop(u32 lane) {
    __syncwarp();
    if (Lane() == 0) BarrierArrive(this->base + EmptyAt(lane, dropped[lane] % kSlots));
    ++dropped[lane];
  }
  // The same page as Take's: its shared-memory address, and how far apart its pieces are.
  EVT_FN uint2 TakeShared(u32 lane) {
    const uint2 page = PeekShared(lane, 0);
    ++taken[lane];
    return page;
  }
  EVT_FN GpuPage Peek(u32 lane, i32 ahead) {
    const uint2 page = PeekShared<true>(lane, static_cast<u32>(ahead));
    return GpuPage{this->pages + (page.x - PagesAddress()), page.y};
  }
  template <bool kFar = false>
  EVT_FN uint2 PeekShared(u32 lane, u32 ahead) {
    const u32 at = Taken(lane) + ahead;
    const u32 slot = at % kSlots;
    // Where warps have pages of their own (kFar), the slot's page before may not even have arrived, for a warp that has
    // to do with it, and `full` could not tell that phase from the one wanted. `empty` can: this warp has not dropped the
    // page wanted, and all in front of its own last one, at most kSlots behind, have been asked for.
    static_assert(2 * kComputeWarps <= kSlots, "a wave of chunks of two pages each, and the first of the next one");
    if constexpr (kFar) AwaitBarrier(this->base + EmptyAt(lane, slot), (at / kSlots - 1) % 2);
    AwaitBarrier(this->base + FullAt(lane, slot), at / kSlots % 2);
    const SlotPage page = LoadSlot(this->base + SlotAt(lane, slot));
    // After an abort the slot may hold no page: any page will do then, nothing of it is published.
    return make_uint2(PagesAddress() + static_cast<u32>(Max(page.page, 0)) * kPageBytes,
                      page.piece_bytes);
  }
  // One warp of `sharers` that use the page is through with it; it arrives for the warps that never were
  // there, too.
  EVT_FN void Release(u32 lane, i32 ahead, i32 sharers, bool first) {
    __syncwarp();
    const u32 count = first ? kComputeWarps - static_cast<u32>(sharers) + 1 : 1;
    if (Lane() == 0) {
      Port::ArriveMany(
          this->base + EmptyAt(lane, (Taken(lane) + static_cast<u32>(ahead)) % kSlots), count);
    }
  }
  EVT_FN void Again(u32 lane) { taken[lane] = dropped[lane]; }
  EVT_FN void Advance(u32 lane, i32 pages) {
#pragma unroll
    for (u32 of = 0; of < kLanes; ++of) {
      const u32 passed = of == lane ? static_cast<u32>(pages) : 0;
      taken[of] += passed;
      dropped[of] += passed;
    }
  }
  EVT_FN u8* Own(GpuPage& page, const CopyShape&) { return page.data; }
  template <class F>
  EVT_FN void Parallel(i32 n, const F& f) {
    // Not unrolled: bodies are long, n is short, and code size is compile time.
#pragma unroll 1
    for (i32 i = static_cast<i32>(thread); i < n; i += kComputeThreads) f(i);
  }
  // A warp a row, without registers between: few instructions.
  template <class From>
  EVT_FN void Bring(float* to, i32 rows, i32 n, const From& from) {
#pragma unroll 1
    for (i32 row = static_cast<i32>(thread / 32); row < rows; row += kComputeWarps) {
      const float* source = from(row);
#pragma unroll 1
      for (i32 i = static_cast<i32>(Lane()); i < n; i += 32) {
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(SharedAddress(to + row * n + i)), "l"(source + i)
                     : "memory");
      }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
  }
  template <class Load, class Store>
  EVT_FN void Fetch(i32 n, const Load& load, const Store& store) {
    constexpr i32 kAtOnce = 4;
    using Value = decltype(load(0));
#pragma unroll 1
    for (i32 first = static_cast<i32>(thread); first < n; first += kAtOnce * static_cast<i32>(kComputeThreads)) {
      Value values[kAtOnce];
#pragma unroll
      for (i32 k = 0; k < kAtOnce; ++k) {
        // Not under a condition, which takes registers that linears need.
        values[k] = load(Min(first + k * static_cast<i32>(kComputeThreads), n - 1));
      }
#pragma unroll
      for (i32 k = 0; k < kAtOnce; ++k) {
        const i32 i = first + k * static_cast<i32>(kComputeThreads);
        if (i < n) store(i, values[k]);
      }
    }
  }
  // A warp a row. Each lane knows the best of its keys; the warp takes the best of these and its lane looks for its next.
  template <class Key, class Store>
  EVT_FN void TopOfRows(i32 rows, i32 n, i32 k, const Key& key, const Store& store) {
#pragma unroll 1
    for (i32 row = static_cast<i32>(thread / 32); row < rows; row += kComputeWarps) {
      u32 taken = 0, best = 0;
      u32 at = ~0u;  // none left
      bool looks = true;
#pragma unroll 1
      for (i32 rank = 0; rank < k; ++rank) {
        if (looks) {
          best = 0;
          at = ~0u;
#pragma unroll 1
          for (u32 i = Lane(); i < static_cast<u32>(n); i += 32) {
            const u32 mine = key(row, static_cast<i32>(i));
            if ((taken >> i / 32 & 1) == 0 && (at == ~0u || mine > best)) {
              best = mine;
              at = i;
            }
          }
        }
        const u32 most = __reduce_max_sync(0xffffffffu, best);
        const u32 chosen = __reduce_min_sync(0xffffffffu, best == most ? at : ~0u);
        looks = at == chosen;
        if (looks) {
          taken |= 1u << at / 32;
          store(row, rank, static_cast<i32>(at));
        }
        __syncwarp();
      }
    }
  }
  template <class Load, class Store>
  EVT_FN void RowSums(i32 rows, i32 n, const Load& load, const Store& store) {
#pragma unroll 1
    for (i32 row = static_cast<i32>(thread / 32); row < rows; row += kComputeWarps) {
      float sum = 0.0f;
#pragma unroll 4
      for (i32 i = static_cast<i32>(Lane()); i < n; i += 32) sum = Add(sum, load(row, i));
      for (u32 distance = 16; distance > 0; distance /= 2) sum = Add(sum, Exchange(sum, distance));
      if (Lane() == 0) store(row, sum);
    }
  }
  // Loads are a trip to the second-level cache away, so a warp has four under way at least: of one row where rows are
  // few, of four rows where they are many. One loop for both: where it is one row's, each sum goes on from the one before.
  template <class From, class Store>
  EVT_FN void SumsFrom(i32 rows, i32 n, const From& from, const Store& store) {
    constexpr i32 kAtOnce = 4, kApart = kComputeWarps;
    const bool many = Opaque(rows) > 2 * kApart;
    const i32 lane = static_cast<i32>(Lane()), step = many ? 32 : kAtOnce * 32;
#pragma unroll 1
    for (i32 row = static_cast<i32>(thread / 32); row < rows; row += many ? kAtOnce * kApart : kApart) {
      const float* at[kAtOnce];
      i32 left[kAtOnce];  // of the row, from there on
      float sum[kAtOnce] = {};
#pragma unroll
      for (i32 k = 0; k < kAtOnce; ++k) {
        const i32 first = lane + (many ? 0 : k * 32);
        at[k] = from(many ? Min(row + k * kApart, rows - 1) : row) + first;
        left[k] = n - first;
      }
#pragma unroll 2
      for (i32 i = 0; i < left[0]; i += step) {
        float value[kAtOnce];
#pragma unroll
        for (i32 k = 0; k < kAtOnce; ++k) {
          const float loaded = at[k][Min(i, left[k] - 1)];  // the row's last one, or one before: no branches
          value[k] = i < left[k] ? loaded : 0.0f;
        }
#pragma unroll
        for (i32 k = 0; k < kAtOnce; ++k) {
          sum[k] = Add(many || k == 0 ? sum[k] : sum[k - 1], value[k]);  // where there is none, 0: the same bits
        }
        if (!many) sum[0] = sum[kAtOnce - 1];
      }
      // Four sums in six exchanges: half of the lanes go on with each of a pair, then a quarter with each of four.
      const bool second = (lane & 16) != 0, third = (lane & 8) != 0;
      const float low = Add(second ? sum[1] : sum[0], Exchange(second ? sum[0] : sum[1], 16));
      const float high = Add(second ? sum[3] : sum[2], Exchange(second ? sum[2] : sum[3], 16));
      float mine = Add(third ? high : low, Exchange(third ? low : high, 8));
      for (u32 distance = 4; distance > 0; distance /= 2) mine = Add(mine, Exchange(mine, distance));
      const i32 k = (second ? 1 : 0) + (third ? 2 : 0);
      if (lane % 8 == 0 && (many || k == 0) && row + k * kApart < rows) store(row + k * kApart, mine);
    }
  }
  // A warp an array. Each lane adds neighbouring values, an odd number of them, so that lanes are in different banks.
  EVT_FN void ScanRows(i32* values, i32 arrays, i32 stride, i32 n, i32* totals) {
    const i32 array = static_cast<i32>(thread / 32), lane = static_cast<i32>(Lane());
    if (array >= arrays) return;
    const i32 each = CeilDiv(n, 32) | 1;
    i32* mine = values + array * stride + lane * each;
    const i32 count = Min(n - lane * each, each);
    i32 own = 0;
#pragma unroll 1
    for (i32 i = 0; i < count; ++i) own += mine[i];
    i32 sum = own;
#pragma unroll 1
    for (i32 offset = 1; offset < 32; offset *= 2) {
      const i32 before = __shfl_up_sync(0xffffffffu, sum, static_cast<u32>(offset));
      if (lane >= offset) sum += before;
    }
    if (lane == 31) totals[array] = sum;
    sum -= own;
#pragma unroll 1
    for (i32 i = 0; i < count; ++i) {
      const i32 value = mine[i];
      mine[i] = sum;
      sum += value;
    }
  }
  EVT_FN void Sync() {
    asm volatile("barrier.sync 1, %0;" ::"n"(kComputeThreads) : "memory");
  }
  EVT_FN bool Leader() const {
    return thread == 0;
  }
  EVT_FN u8* Scratch() const { return static_cast<u8*>(__cvta_shared_to_generic(ScratchAddress())); }
  // Worked out where it is used: a register that is held from task to task is one too many for linears.
  EVT_FN u32 ScratchAddress() const {
    return static_cast<u32>(Opaque(static_cast<i32>(this->base))) + kSharedStateBytes;
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

  EVT_FN bool AwaitReady() {
    Take(kLaneInput);
    Drop(kLaneInput);
    if constexpr (kRecordsTimeline<Port>) this->TimeReady();
    return !Vote(end != kGoesOn);
  }
  // Leaves it to the notify warp to announce the task and goes on: a release at device scope takes as long as
  // all of the block's stores, and nobody here has to wait for it. This warp's writes happen before its
  // arrival (__syncwarp), all arrivals before the notify warp's release; the fence is for copies that other
  // workers' copy engines make of them.
  EVT_FN void Done() {
    Port::FenceAfterStores();
    Pass();
  }
  EVT_FN void Pass() {
    __syncwarp();
    if (Lane() == 0) {
      // Named for who reads the PTX: no other word tells this arrival from that of a dropped page.
      asm volatile(
          "// eventide: hands over\n"
          "{ .reg .b64 t; mbarrier.arrive.shared::cta.b64 t, [%0]; }" ::"r"(
              this->base + DoneAt(Slot()))
          : "memory");
    }
    ++begun;
  }
 private:
  // Of a lane that only the task knows: registers have no index.
  EVT_FN u32 Taken(u32 lane) const { return lane == kLaneStream ? taken[kLaneStream] : taken[kLaneInput]; }
  EVT_FN u32 PagesAddress() const { return this->base + kPagesAt; }
  // For a page.
  EVT_FN void AwaitBarrier(u32 barrier, u32 parity) {
    if constexpr (kRecordsTimeline<Port>) {
      if (!Port::BarrierTry(barrier, parity)) this->Stalls(Leader());
    }
    if (Port::template BarrierWait<EndedWord(), CauseWord(kRoleCompute)>(this->base, barrier, parity) != 0) {
      end = kAborted;
    }
    this->StallEnds(Leader());
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
    end = any != 0 ? kLeaves : kGoesOn;
    return Leaves();
  }
};

}  // namespace eventide
