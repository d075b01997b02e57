// The CPU as a target: one thread is a worker and runs all roles in turn (RunSequential). Nothing
// is copied: a page is a table of pointers into the sources themselves. Freestanding, like all of
// device/.
//
// CpuWorkerBase is what the loop needs, the same for every instruction set; CpuWorker<kIsa> adds
// what ops use. Ops are templates over the worker, so each instruction set's build of an op has
// symbols of its own (cmake/ops.cmake); everything that is not a template is always inlined.
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

// Instruction sets that ops are built for; kCpuPortable is what the compiler targets by default.
enum CpuIsa : int { kCpuPortable = 0, kCpuV3 = 1, kCpuV4 = 2, kCpuIsas = 3 };

struct CpuPageRecord {
  const u8* piece[kMaxPieces];
};

struct CpuPage {
  CpuPageRecord* record;
  EVT_FN const u8* Piece(i32 i) const { return record->piece[i]; }
};

// The pages of one task and lane, in order; reused by the next task.
struct CpuLane {
  CpuPageRecord* pages;
  u32 capacity, asked, taken, dropped;
};

// What a wait does between polls, and the clock: the operating system's business, given by the
// executor.
struct CpuWaiting {
  void (*relax)(void* context, u32 attempt);
  u64 (*now_ns)();
  void* context;
};

struct CpuWorkerBase {
  StepView step;
  u32 worker, workers;
  const ProgramRecord* program;
  CpuWaiting waiting;

  CpuWorkerBase() { __builtin_memset(static_cast<void*>(this), 0, sizeof(*this)); }
  CpuWorkerBase(const CpuWorkerBase&) = delete;
  CpuWorkerBase& operator=(const CpuWorkerBase&) = delete;
  ~CpuWorkerBase() {
    for (CpuLane& lane : lanes_) __builtin_free(lane.pages);
    for (u32 i = 0; i < block_count_; ++i) __builtin_free(blocks_[i]);
    __builtin_free(blocks_);
  }

  // Before a step: `step` and `program` are set.
  void StartStep() {
    aborted_ = false;
    task_.grid = -1;
    finished_ = 0;
    __builtin_memset(memo_, 0, kKeptBytes);
    DirectSync::StoreRelaxed(ProgressWord(), 0);
  }

  // --- the loop
  // -----------------------------------------------------------------------------------------
  EVT_FN bool aborted() const { return aborted_; }
  EVT_FN bool Leaves() const { return aborted(); }
  EVT_FN bool Begin(const TaskName& task) {
    // Another worker may have ended the step, while this one was in the task before; the word is written
    // then and otherwise only read.
    if (DirectSync::LoadRelaxed(AbortWord(*program)) != 0) Tell(kAbortStuckTask, task_, 0, 0, 0);
    task_ = task;
    for (CpuLane& lane : lanes_) lane.asked = lane.taken = lane.dropped = 0;
    block_used_ = 0;
    return !aborted_;
  }
  template <class P>
  EVT_FN bool Await(const P& p, const ElementBox& box, const TaskName& task) {
    const i32 size = box.size();
    for (i32 k = 0; k < size; ++k) {
      i32 index[kMaxEventDims];
      box.Index(k, index);
      const i32 element = p.Element(box.event, index);
      const u32 target = static_cast<u32>(p.Target(step, box.event, index));
      // Acquires what the notifying tasks wrote; counterpart: AddRelease in Notify.
      if (DirectSync::LoadAcquire(CounterAt(*program, step.header->bank, element)) < target &&
          !AwaitElement(element, target, task)) {
        return false;
      }
    }
    return true;
  }
  template <class P>
  EVT_FN void Notify(const P& p, const ElementBox& box) {
    const i32 size = box.size();
    for (i32 k = 0; k < size; ++k) {
      i32 index[kMaxEventDims];
      box.Index(k, index);
      // Publishes the task's writes; counterpart: LoadAcquire in Await.
      DirectSync::AddRelease(CounterAt(*program, step.header->bank, p.Element(box.event, index)),
                             1);
    }
  }
  // Which lane Copy and Blank ask for: the roles run in turn, so that the loop says whose turn it
  // is.
  EVT_FN void Produce(u32 lane) { producing_ = lane; }
  EVT_FN void Ready() {}
  EVT_FN bool AwaitReady() { return !aborted_; }
  template <class P>
  EVT_FN void KnowTurns(const P& p) {
    turns_.Know(p, step, workers);
  }
  template <class P>
  EVT_FN GridTurn TurnOf(const P& p, i32 grid) const {
    return turns_.Of(p, grid);
  }
  template <class P>
  EVT_FN void Done(const P& p, const TaskName& done) {
    NotifyTask(p, *this, done.grid, done.at);
    Finished();
  }
  EVT_FN void Finished() { DirectSync::StoreRelaxed(ProgressWord(), ++finished_); }
  EVT_FN u32 TakeTicket(i32 element) {
    return DirectSync::FetchAddRelaxed(CounterAt(*program, step.header->bank, element), 1);
  }
  // Called only where programs record a timeline (device/timeline.h); all roles share one ring.
  void TimeStep() { timer_.BeginStep(*program, worker, kRoleCompute, waiting.now_ns()); }
  void TimeStepEnd() { timer_.EndStep(waiting.now_ns()); }
  void TimeTask(const TaskName& task) { timer_.Start(task.grid, task.at, waiting.now_ns()); }
  void TimeReady() { timer_.WaitEnd(waiting.now_ns()); }
  void TimeEnd() { timer_.End(waiting.now_ns()); }

 protected:
  u32* ProgressWord() const {
    return reinterpret_cast<u32*>(program->progress + u64{worker} * kEventStrideBytes);
  }

  __attribute__((noinline)) bool AwaitElement(i32 element, u32 target, const TaskName& task) {
    const u32* counter = CounterAt(*program, step.header->bank, element);
    ProgressWatch<DirectSync> watch;
    for (u32 attempt = 0;; ++attempt) {
      const u32 seen = DirectSync::LoadAcquire(counter);
      if (seen >= target) return true;
      bool ended = DirectSync::LoadRelaxed(AbortWord(*program)) != 0;
      // Looking at the clock and at every worker's progress costs more than a poll.
      if (!ended && attempt % 64 == 63 &&
          watch.Stalled(*program, workers, waiting.now_ns(), step.header->timeout_ns)) {
        DirectSync::StoreRelaxed(AbortWord(*program), 1);
        ended = true;
      }
      if (ended) {
        Tell(kAbortStuckEvent, task, static_cast<u32>(element), seen, target);
        return false;
      }
      waiting.relax(waiting.context, attempt);
    }
  }
  // What this worker was at when the step was given up; it then leaves.
  __attribute__((noinline)) void Tell(u32 cause, const TaskName& task, u32 element, u32 seen,
                                      u32 expected) {
    if (aborted_) return;
    AbortRecord& record = AbortRecordOf(*program, worker, kRoleInput);
    record = {cause, worker, kRoleInput, task.grid, task.at.layer, {}, element, seen, expected};
    for (int i = 0; i < kMaxCoords; ++i) record.at[i] = task.at.at[i];
    aborted_ = true;
  }

  TaskName task_;
  HostTurns turns_;
  TaskTimer timer_;
  bool aborted_;
  u32 finished_, producing_;
  CpuLane lanes_[kLanes];
  u8** blocks_;
  u32 block_count_, block_used_;
  alignas(64) u8 scratch_[kScratchBytes];
  alignas(64) u8 memo_[kKeptBytes];
};

template <int kIsaId>
struct CpuWorker : CpuWorkerBase, HostWords<CpuWorker<kIsaId>> {
  static constexpr int kIsa = kIsaId;
  template <class T, int kTokens>
  using LinearTile = CpuLinearTile<kIsaId, T, kTokens>;
  template <class T>
  using AttentionTile = HostAttentionTile<T>;
  template <class T>
  using LongAttention = HostLongAttention<T>;
  static constexpr i32 kGroups = 1;
  static constexpr bool kSwizzledKv = false;
  static constexpr bool kPagesAreCopies = false;
  static constexpr bool kTensorBoxes = false;
  static constexpr bool kWideTiles = false;

  // --- producers; which lane is said by the loop (Produce)
  // ------------------------------------------------
  template <class Source>
  EVT_FN void Copy(const CopyShape& shape, const Source& source) {
    CpuPageRecord& page = NextPage();
    for (i32 run = 0; run < shape.runs; ++run) {
      for (i32 i = 0; i < shape.pieces; ++i) {
        page.piece[run * shape.pieces + i] = reinterpret_cast<const u8*>(source(i, run));
      }
    }
  }
  template <class F>
  EVT_FN void ByOne(const F& f) {
    f(*this);
  }
  template <class Source>
  EVT_FN void CopyRows(i32 rows, u32 bytes, u32 unit, const Source& source) {
    u8* memory = Private(static_cast<u32>(CeilDiv(rows, 8)) * bytes);
    CpuPageRecord& page = NextPage();
    for (i32 i = 0; i * 8 < rows; ++i) page.piece[i] = memory + static_cast<u32>(i) * bytes;
    for (i32 r = 0; r < rows; ++r) {
      const u8* from = reinterpret_cast<const u8*>(source(r));
      u8* to = memory + static_cast<u32>(r / 8) * bytes + static_cast<u32>(r % 8) * unit;
      for (u32 at = 0; at < bytes; at += 8 * unit) __builtin_memcpy(to + at, from + at, unit);
    }
  }
  EVT_FN void Blank() {
    u8* memory = Private(kPageBytes);
    NextPage().piece[0] = memory;
  }

  // --- the compute role
  // -----------------------------------------------------------------------------------
  EVT_FN CpuPage Take(u32 lane) {
    CpuLane& from = lanes_[lane];
    if (from.taken == from.asked) __builtin_trap();  // the op takes a page that it never asked for
    return CpuPage{&from.pages[from.taken++]};
  }
  EVT_FN void Drop(u32 lane) { ++lanes_[lane].dropped; }
  EVT_FN void Again(u32 lane) { lanes_[lane].taken = lanes_[lane].dropped; }
  EVT_FN i32 MostKept() const { return 1 << 16; }  // pages are views
  EVT_FN CpuPage Peek(u32 lane, i32 ahead) {
    const CpuLane& from = lanes_[lane];
    if (from.taken + static_cast<u32>(ahead) >= from.asked) __builtin_trap();  // as in Take
    return CpuPage{&from.pages[from.taken + static_cast<u32>(ahead)]};
  }
  EVT_FN void Release(u32, i32, i32, bool) {}
  EVT_FN void Advance(u32 lane, i32 pages) { lanes_[lane].taken += static_cast<u32>(pages); }
  EVT_FN u8* Own(CpuPage& page, const CopyShape& shape) {
    u8* copy = Private(kPageBytes);
    for (i32 run = 0; run < shape.runs; ++run) {
      for (i32 i = 0; i < shape.pieces; ++i) {
        const u32 size = i + 1 < shape.pieces ? shape.bytes : shape.last_bytes;
        __builtin_memcpy(copy + run * static_cast<i64>(shape.run_bytes) + i * static_cast<i64>(shape.bytes),
                         page.record->piece[run * shape.pieces + i], size);
      }
    }
    page.record->piece[0] = copy;
    return copy;
  }
  template <class F>
  EVT_FN void Parallel(i32 n, const F& f) {
    for (i32 i = 0; i < n; ++i) f(i);
  }
  EVT_FN void Sync() {}
  EVT_FN bool Leader() const { return true; }
  EVT_FN u8* Scratch() { return scratch_; }
  EVT_FN u8* Memo() { return memo_; }
  EVT_FN u8* Prepared() { return memo_ + kMemoBytes; }
  // Both orders: acquires what earlier arrivers wrote, releases what we wrote; counterpart: itself.
  EVT_FN u32 Arrive(u32* counter) { return DirectSync::FetchAddAcqRel(counter, 1); }


  // Blocks of 16 rows lie k by k, so that 16 rows of one k are one vector.
  static EVT_FN constexpr i32 FragmentElement(i32 row, i32 k) { return k * 16 + row; }

 private:
  static constexpr u32 kBlockBytes = 16 * kPageBytes;

  EVT_FN CpuPageRecord& NextPage() {
    CpuLane& lane = lanes_[producing_];
    if (lane.asked == lane.capacity) GrowLane(lane);
    return lane.pages[lane.asked++];
  }
  __attribute__((noinline)) void GrowLane(CpuLane& lane) {
    lane.capacity = lane.capacity == 0 ? 16 : 2 * lane.capacity;
    lane.pages = static_cast<CpuPageRecord*>(
        __builtin_realloc(lane.pages, lane.capacity * sizeof(CpuPageRecord)));
    if (lane.pages == nullptr)
      __builtin_trap();  // a few KB per worker: the machine has no memory left
  }
  // Private memory of the current task, 16-byte aligned; bytes <= kBlockBytes.
  EVT_FN u8* Private(u32 bytes) {
    const u32 rounded = (bytes + 63) & ~63u;
    if (block_used_ % kBlockBytes + rounded > kBlockBytes) {
      block_used_ = (block_used_ + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
    }
    if (block_used_ / kBlockBytes >= block_count_) AddBlock();
    u8* memory = blocks_[block_used_ / kBlockBytes] + block_used_ % kBlockBytes;
    block_used_ += rounded;
    return memory;
  }
  __attribute__((noinline)) void AddBlock() {
    blocks_ = static_cast<u8**>(__builtin_realloc(blocks_, (block_count_ + 1) * sizeof(u8*)));
    void* block = __builtin_malloc(kBlockBytes);
    if (blocks_ == nullptr || block == nullptr) __builtin_trap();  // as in GrowLane
    blocks_[block_count_++] = static_cast<u8*>(block);
  }
};

}  // namespace eventide
