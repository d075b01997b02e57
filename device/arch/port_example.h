// What a target supplies: declarations and meaning only, compiled by nobody. cpu.h and sim.h (host) and
// the .cuh files named after architectures (CUDA) are the ports. Ops are written against these words and name no target.
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
  // Asks for the lane's next page and fills it as `shape` says from source(piece, run): 16-byte aligned. Returns
  // once the copy is issued. Source memory must be final: constant, written in an earlier step, or guarded by an
  // event this role has seen fire. On abort it returns at once.
  template <class Source>
  void Copy(const struct CopyShape& shape, const Source& source);
  // The lane's next page as pieces of 8 rows of `bytes` bytes: units of `unit` bytes of the 8 rows in
  // turn, as activations lie (device/layout.h). Row r's units come from source(r), where they are 8 units
  // apart too. rows <= 32; of rows that a piece lacks, anything may be read. The input role only.
  template <class Source>
  void CopyRows(i32 rows, u32 bytes, u32 unit, const Source& source);
  // Where the target has tensor maps (kTensorBoxes): the lane's next page is the box that begins at `at`, of
  // `bytes` bytes in pieces piece_bytes apart. By one thread: within ByOne.
  void CopyBox(u64 map, const struct BoxAt& at, u32 bytes, u32 piece_bytes);
  // Calls f(producer) once, for copies that one thread can issue by itself; no CopyRows within it.
  template <class F>
  void ByOne(const F& f);
  // The lane's next page without data, for Compute to fill as one piece of kPageBytes.
  void Blank();

  // --- the compute role ------------------------------------------------------------------------------
  // The lane's next page, in the order its producer asked, when its data has arrived. Called uniformly.
  ExamplePage Take(u32 lane);
  // Gives the lane's oldest taken page back; none of its bytes may be read by this thread afterwards.
  void Drop(u32 lane);
  // The next page to be taken is the oldest that has not been given back, again.
  void Again(u32 lane);
  // How many pages of the input lane a task may hold until its end (both roles get the same answer): as many as are
  // its in any case, so that holding them keeps nobody from getting on.
  i32 MostKept() const;
  // Without taking: the page `ahead` of the next one, for groups of threads that use different pages at the
  // same time. Each of the `sharers` groups that used a page releases it (one of them as the first); then all
  // threads pass the pages together.
  ExamplePage Peek(u32 lane, i32 ahead);
  void Release(u32 lane, i32 ahead, i32 sharers, bool first);
  void Advance(u32 lane, i32 pages);
  // Makes a page that was filled as `shape` says one piece of kPageBytes that Compute may write: the page itself
  // where pages are copies (kPagesAreCopies), a private copy on the CPU. Sync before others read what was
  // written.
  u8* Own(ExamplePage& page, const struct CopyShape& shape);
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
  // kMemoBytes more, kept from task to task and all zero when a step begins.
  u8* Memo();
  // kPreparedBytes more, 16-byte aligned, of the task in hand: what its op's Prepare leaves there, its Compute finds, and
  // its Input where that follows (Follows).
  u8* Prepared();
  // The role's arrival on a counter in global memory, after all its writes: returns the number of
  // earlier arrivals to every thread. Acquires what earlier arrivers wrote, releases what we wrote: "the
  // last to arrive merges". Includes Sync before and after.
  u32 Arrive(u32* counter);

  // Copies n floats of each row, from(row), to to[row * n] in Scratch. Ends without a barrier.
  template <class From>
  void Bring(float* to, i32 rows, i32 n, const From& from);
  // Parallel, f(i) being store(i, load(i)): loads of several i are on their way before their
  // first store, and i's may come twice.
  template <class Load, class Store>
  void Fetch(i32 n, const Load& load, const Store& store);
  // The k largest of n <= 1024 keys (u32) of each row: store(row, rank, i) is called once per rank by one thread, that of
  // the largest first; equal keys in the order of i. key(row, i) is read until the row's last store. No barrier.
  template <class Key, class Store>
  void TopOfRows(i32 rows, i32 n, i32 k, const Key& key, const Store& store);

  // The sum of n values of each row, in a fixed tree: 32 virtual lanes, lane l adds i = l, l + 32, ... in
  // order, then lanes are added pairwise (l and l + 16, then + 8, + 4, + 2, + 1). load(row, i) gives a
  // value; store(row, sum) is called once per row by one thread. No barrier.
  template <class Load, class Store>
  void RowSums(i32 rows, i32 n, const Load& load, const Store& store);
  // The same of n floats of memory, from(row), of each row: loads of several are under way.
  template <class From, class Store>
  void SumsFrom(i32 rows, i32 n, const From& from, const Store& store);

  // Prefix sums of ops/scan.h, without its barriers.
  void ScanRows(i32* values, i32 arrays, i32 stride, i32 n, i32* totals);

  // Element of a 16 x 16 fragment of packed weights where (row, k) lies, in this target's order.
  static i32 FragmentElement(i32 row, i32 k);

  // --- the loop (device/loop.h) --------------------------------------------------------------------------
  bool Begin(const struct TaskName& task);
  bool aborted() const;
  bool Leaves() const;
  template <class P>
  bool Await(const P& p, const ElementBox& box, const struct TaskName& task);
  template <class P>
  void Notify(const P& p, const ElementBox& box);
  void Ready();       // input role: the task's events have fired; handed to AwaitReady in task order
  bool AwaitReady();  // compute role; where it returns true, a Sync, too
  template <class P>
  void KnowTurns(const P& p);  // before a walk: what is known of all grids is worked out, if it has not been
  template <class P>
  struct GridTurn TurnOf(const P& p, i32 grid) const;  // what is remembered of a grid, or UnknownTurn
  template <class P>
  void Done(const P& p, const struct TaskName& task);  // compute role: sends the task's notifies, now or soon
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
  // Which of the wave's chunks this group works on (there may be fewer), if `units` groups take a chunk: Units of them,
  // or all groups; its sums are cleared.
  i32 Start(i32 units, i32 rows, i32 head_dim);
  // Calls visit(number, ahead) for the pages of the wave's chunk `slot`, `ahead` of the wave's first one, where
  // pages(of) is how many chunk `of` of `chunks` has and all are in the order of AttentionPages.
  // Returns the pages of all.
  template <class Pages, class Visit>
  i32 ForEachPage(i32 slot, i32 chunks, const Pages& pages, const Visit& visit);
  // The groups of one chunk among themselves: whether this is the first, a barrier, rows spread over them, and
  // columns of a row spread over a group's threads, or added (the tree of RowSums).
  bool First() const;
  void Sync();
  template <class F>
  void ForEachRow(i32 n, const F& f);
  template <class F>
  void ForEachColumn(i32 n, const F& f);
  template <class Load>
  float RowSum(i32 n, const Load& load);
  // The chunk's next page joins, which has `tokens` tokens; begin(row) and end(row) bound those that a row
  // sees.
  template <class Queries, class View, class Begin, class End>
  void Page(const Queries& queries, const View& keys, const View& values, i32 tokens, i32 page_tokens,
            i32 rows, i32 head_dim, const Begin& begin, const End& end);
  // at(row): where the chunk's sums of a row go, with its maximum and its sum of weights behind them.
  template <class At>
  void Store(i32 rows, i32 head_dim, const At& at) const;
};

// A tile of many rows, on whose chunks all groups work together, each on rows of its own: what it has merged of them, as
// LongAttention<T>.
template <class T>
struct ExampleLongAttention {
  using Tile = ExampleAttentionTile<T>;
  static constexpr i32 kPages = 0;  // of memory, beside the one for queries; at most kMaxLongPages
  static i32 Rows(i32 head_dim);  // of a tile at most; an even number
  // Nothing yet; before that it is nothing at all.
  void Start(const Tile& tile, i32 head_dim, const struct LongMemory& memory);
  // The tile's chunk joins those before it.
  void Merge(const Tile& tile, i32 rows, i32 head_dim, const struct LongMemory& memory);
  // store(row, dim, eight): attention's results, eight neighbours at a time. May write over the queries.
  template <class Queries, class F>
  void Output(const Tile& tile, const Queries& queries, i32 rows, i32 head_dim, const struct LongMemory& memory,
              const F& store);
};

// Products of a tile of packed weights with a tile of activations (ops/linear.h), as the worker's member
// template LinearTile<T, kTokens>. Weights come in pages of [step][segment][m16][fragment], activations in
// pieces, one per 8 tokens, of [step][segment][k16]. Each of the kSegments segments of K is summed from
// zero in steps of 16; Finish adds them left to right. E is LinearEpilogue.
template <class T, int kTokens>
struct ExampleLinearTile {
  // blocks of 16 rows; wide, on targets with kWideTiles: Products of every fourth tile makes those of the three after
  // it, too, and pages have one segment's steps, of weights [tile][step][m16][fragment] of two tiles.
  ExampleLinearTile(ExampleWorker& w, i32 blocks, i32 tokens, bool wide);
  // What this thread's outputs need of constants, in the tile that begins at row `first` of the task, and of memory
  // that the task's events guard.
  template <class E>
  struct Row;
  template <class E>
  Row<E> RowOf(const E& epilogue, i32 first) const;
  template <class E>
  float First(const E& epilogue, const Row<E>& row) const;
  // Takes and drops the task's pages: weights of weight_steps steps each, activations of input_steps. tiles: how many
  // are left, with this one; keeps: activations are taken, but not dropped, since the next tile takes them again.
  void Products(ExampleWorker& w, i32 steps, i32 weight_steps, i32 input_steps, i32 tiles,
                bool keeps);
  // Ends every output by the epilogue's Value, Emit and Reduced; uses the first 16 KiB of Scratch. Has a barrier
  // before the first of them.
  template <class E>
  void Finish(ExampleWorker& w, const E& epilogue, const Row<E>& row, float loaded, i32 first, i32 tiles);
};

}  // namespace eventide
