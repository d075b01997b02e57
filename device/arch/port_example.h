// What a target supplies: declarations and meaning only, compiled by nobody. cpu.h and sim.h (host) and
// sm80.cuh, sm90.cuh (CUDA) are the ports. Ops are written against these words and name no target.
//
// One worker has three roles (device/loop.h). On the GPU they are warps of one thread block, in the
// simulator fibres, on the CPU one thread does all of them in turn (RunSequential).
#pragma once

#include "device/abi.h"
#include "device/event.h"
#include "device/op.h"
#include "device/pages.h"

namespace eventide {

// A page as the compute role sees it: up to kMaxPieces pieces of equal size. On targets that copy, pieces lie
// back to back; on the CPU each piece is a view of the source itself.
struct ExamplePage {
  const u8* Piece(i32 i) const;
};

struct ExampleWorker {
  StepView step;
  u32 worker, workers;

  // --- producers: the stream role (kLaneStream) and the input role (kLaneInput) -------------------------
  // Asks for the lane's next page and fills it with `pieces` (<= kMaxPieces) blocks of `bytes` each, the
  // last one of `last_bytes` (0: as the others), read from source(i): 16-byte aligned, multiples of 16,
  // pieces * bytes <= kPageBytes. Returns once the copy is issued. Source memory must be final: constant, written in an earlier step, or guarded by an event
  // this role has seen fire. On abort it returns at once.
  template <class Source>
  void Copy(i32 pieces, u32 bytes, const Source& source, u32 last_bytes = 0);
  // The lane's next page as pieces of 8 rows of `bytes` bytes: units of `unit` bytes of the 8 rows in
  // turn, as activations lie (device/layout.h). Row r's units come from source(r), where they are 8 units
  // apart too. rows <= 32; of rows that a piece lacks, anything may be read. The input role only.
  template <class Source>
  void CopyRows(i32 rows, u32 bytes, u32 unit, const Source& source);
  // The lane's next page without data, for Compute to fill as one piece of kPageBytes.
  void Blank();

  // --- the compute role ------------------------------------------------------------------------------
  // The lane's next page, in the order its producer asked, when its data has arrived. Called uniformly.
  ExamplePage Take(u32 lane);
  // Gives the lane's oldest taken page back; none of its bytes may be read by this thread afterwards.
  void Drop(u32 lane);
  // Makes a taken page, filled with `pieces` pieces of `bytes` (the last of `last_bytes`), one piece of
  // kPageBytes that Compute may write: the page itself where pages are copies, a private copy on the CPU.
  // Sync before others read what was written.
  u8* Own(ExamplePage& page, i32 pieces, u32 bytes, u32 last_bytes);
  // f(i) for every i in [0, n), spread over the role's threads; no order. Ends without a barrier.
  template <class F>
  void Parallel(i32 n, const F& f);
  // Barrier of the role's threads; what they wrote to Scratch, pages and global memory is visible to each
  // other after it.
  void Sync();
  // True for one thread of the role.
  bool Leader() const;
  // kScratchBytes of memory shared by the role's threads, 16-byte aligned; content is lost between tasks.
  u8* Scratch();
  // The role's arrival on a counter in global memory, after all its writes: returns the number of
  // earlier arrivals to every thread. Acquires what earlier arrivers wrote, releases what we wrote: "the
  // last to arrive merges". Includes Sync before and after.
  u32 Arrive(u32* counter);

  // The sum of n values of each row, in a fixed tree: 32 virtual lanes, lane l adds i = l, l + 32, ... in
  // order, then lanes are added pairwise (l and l + 16, then + 8, + 4, + 2, + 1). load(row, i) gives a
  // value; store(row, sum) is called once per row by one thread. No barrier.
  template <class Load, class Store>
  void RowSums(i32 rows, i32 n, const Load& load, const Store& store);

  // Element of a 16 x 16 fragment of packed weights where (row, k) lies, in this target's order.
  static i32 FragmentElement(i32 row, i32 k);

  // --- the loop (device/loop.h) --------------------------------------------------------------------------
  bool Begin(const struct TaskName& task);
  bool aborted() const;
  template <class P>
  bool Await(const P& p, const ElementBox& box, const struct TaskName& task);
  template <class P>
  void Notify(const P& p, const ElementBox& box);
  void Ready();       // input role: the task's events have fired; handed to AwaitReady in task order
  bool AwaitReady();  // compute role
  void Publish();     // compute role: Sync, and whatever fence the target needs before Notify
  void Finished();    // one more task done: the progress word
  u32 TakeTicket(i32 element);
};


// Attention of a task's rows over KV pages, as AttentionTile<T>. The role's threads are kGroups groups (warps
// on the GPU) that work on chunks of positions by themselves; Units says how many groups a chunk takes.
// kSwizzledKv: 16-byte pieces of queries and cached rows are exchanged as KvColumn says.
template <class T>
struct ExampleAttentionTile {
  explicit ExampleAttentionTile(ExampleWorker& w);
  static i32 Units(i32 rows, i32 head_dim);
  // Whether this group works on the wave's chunk `slot`; if so its sums are cleared.
  bool Start(i32 slot, i32 rows, i32 head_dim);
  // The chunk's next page joins; low(row) and high(row) bound the tokens of the page that a row sees.
  // queries: [rows, rounded up to 16][head_dim].
  template <class View, class Low, class High>
  void Page(const T* queries, const View& keys, const View& values, i32 tokens, i32 rows, i32 head_dim,
            const Low& low, const High& high);
  void Store(float* sums, struct SoftmaxState* state, i32 rows, i32 head_dim) const;
};

// Products of a tile of packed weights with a tile of activations (ops/linear.h), as the worker's member
// template LinearTile<T, kTokens>. Weights come in pages of [step][segment][m16][fragment], activations in
// pieces, one per 8 tokens, of [step][segment][k16]. Each of the kSegments segments of K is summed from
// zero in steps of 16; Finish adds them left to right.
template <class T, int kTokens>
struct ExampleLinearTile {
  explicit ExampleLinearTile(ExampleWorker& w);  // all sums zero
  // One page of weights, `steps` steps long, against the input page's steps from `first` on.
  void Step(ExampleWorker& w, const ExamplePage& weights, const ExamplePage& input, i32 first,
            i32 steps, i32 tokens);
  // Every row of the tile and every token, spread over threads; uses the first 8 KiB of Scratch. The
  // values of rows r and r + 8 of a block of 16 come together: f(row, token, value, value_of_row_plus_8)
  // for rows with row % 16 < 8. Has a barrier before the first call of f.
  template <class F>
  void Finish(ExampleWorker& w, i32 tokens, const F& f);
};

}  // namespace eventide
