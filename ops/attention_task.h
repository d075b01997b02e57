// One attention task's place in the step: which queries and positions it covers, and its memory.
#pragma once

#include "device/dtype.h"
#include "device/op.h"
#include "device/pages.h"
#include "device/softmax.h"
#include "ops/attention_merge.h"
#include "ops/step_tables.h"

namespace eventide {

struct AttentionOperand {
  enum : int {
    kItems,
    kRowStart,
    kQkv,        // float[token][kv_head][qkv_stride]: query heads, key, value; raw
    kCache,      // device/layout.h, KvLayout
    kQueryNorm,  // head_dim gains, if qk_norm
    kKeyNorm,
    kRope,      // float[position][head_dim / 2][cos, sin]
    kPartials,  // float[slot][head][head_dim + 2]
    kMerge,     // u32[group][kv_head][split], zero between tiles
    kOutput,    // activations, K = all query heads * head_dim
    kPicked,    // if `picked`: i32[row], tokens in front of this step's among the picked blocks
    kTable,     // if `picked`: u32[row][kv_head][picked], those blocks (ops/pick_blocks.h)
  };
};

struct AttentionParams {
  i32 head_dim;  // a multiple of 8, at most 256
  i32 kv_heads, group;
  i32 qkv_stride;  // floats of one KV head in qkv
  i32 block_size;  // tokens of a KV block, a power of two
  i32 window;      // sliding window in tokens, itself included; 0: none
  float scale;     // of scores, 1 / sqrt(head_dim) as a rule
  float epsilon;   // of the QK-norm
  i32 qk_norm;     // 0: q_norm and k_norm are not read
  i32 picked;      // > 0: rows attend to the blocks of their own tables; no window then
};

// What of a task follows from the parameters: constants, where those are.
struct AttentionCut {
  i32 page_tokens, splits, split_heads;
  EVT_FN AttentionCut(const AttentionParams& p, i32 element_bytes)
      : page_tokens(KvPageTokens(p.head_dim, element_bytes)),
        splits(AttentionSplits(p.head_dim, p.group, element_bytes)),
        split_heads(AttentionHeads(p.head_dim, p.group, element_bytes)) {}
  // Of the KV head's query heads, how many a split has.
  EVT_FN i32 Heads(const AttentionParams& p, i32 split) const {
    return splits == 1 ? p.group : Min(split_heads, p.group - split * split_heads);
  }
};

struct AttentionTask {
  AttentionItem item;
  i32 row_start;  // first token of the row
  i32 rows;       // q_count * heads: row = token * heads + head
  i32 low, high;  // positions this item covers; low at the start of a page
  i32 cached;     // those below it are in the cache when the task may begin

  EVT_FN AttentionTask(const Task<AttentionParams>& t, i32 element_bytes) {
    const AttentionParams& p = t.params();
    const AttentionCut cut(p, element_bytes);
    item = t.Operand<const AttentionItem>(AttentionOperand::kItems)[t.at.at[0]];
    row_start = t.Operand<const i32>(AttentionOperand::kRowStart)[item.row];
    rows = item.q_count * cut.Heads(p, t.at.at[2]);
    low = Max(Seen(p) / cut.page_tokens * cut.page_tokens, ChunkStart(item.chunk_first));
    high = Min(item.context + item.q_first + item.q_count, ChunkStart(item.chunk_end));
    if (item.chunk_first >= item.chunk_end) high = low;
    cached = item.appended ? high : item.context;
  }

  // Where a token of the shorter sequence stands in the whole one.
  EVT_FN i32 Place(const Task<AttentionParams>& t, i32 position) const {
    if (t.params().picked == 0) return position;
    return position + static_cast<i32>(t.step.Slots()[item.slot].context_length) - item.context;
  }
  EVT_FN const u32* Table(const Task<AttentionParams>& t) const {
    const AttentionParams& p = t.params();
    if (p.picked == 0) return t.step.BlockTable(static_cast<u32>(item.slot));
    return t.Operand<const u32>(AttentionOperand::kTable) +
           (static_cast<i64>(item.row) * p.kv_heads + t.at.at[1]) * p.picked;
  }

  // The first of the item's positions in a chunk, and how many KV pages it has there.
  EVT_FN i32 FirstOf(i32 chunk) const { return Max(ChunkStart(chunk), low); }
  EVT_FN i32 Pages(i32 page_tokens, i32 chunk) const {
    return CeilDiv(Max(0, Min(ChunkStart(chunk + 1), high) - FirstOf(chunk)), page_tokens);
  }
  // Whether none of the chunks [chunk, end) has more than two pages: then a group that is through with its own, of a wave
  // of them, is less than kSlots (nvidia.cuh) pages behind its first one of the next wave. A chunk is no longer than those
  // behind it, but for the last one.
  EVT_FN bool Near(const AttentionParams& p, i32 element_bytes, i32 chunk, i32 end) const {
    const i32 page_tokens = KvPageTokens(p.head_dim, element_bytes);
    return Max(Pages(page_tokens, Max(chunk, end - 2)), Pages(page_tokens, end - 1)) <= 2;
  }
  // Chunks worked on at a time, where `groups` groups of threads take `units` each.
  static EVT_FN i32 Wave(i32 groups, i32 units) { return units == 1 ? groups : Max(1, groups / units); }

  // How a KV page is filled: a run of keys and a run of values, each of whole blocks of the cache, or of
  // parts where blocks are larger. No pieces: all of the page's tokens are this step's.
  EVT_FN CopyShape Shape(const AttentionParams& p, i32 page_tokens, i32 page,
                         u32 element_bytes) const {
    const i32 copied = Max(0, Min(cached - page, page_tokens));
    const i32 piece = Min(p.block_size, page_tokens);
    const u32 token_bytes = static_cast<u32>(p.head_dim) * element_bytes;
    CopyShape shape;
    shape.pieces = CeilDiv(copied, piece);
    shape.bytes = static_cast<u32>(piece) * token_bytes;
    shape.last_bytes = static_cast<u32>(copied - (shape.pieces - 1) * piece) * token_bytes;
    shape.runs = 2;
    shape.run_bytes = static_cast<u32>(page_tokens) * token_bytes;
    return shape;
  }

  // The raw projections of the row's query token `at`, of the task's KV head.
  EVT_FN const float* Raw(const Task<AttentionParams>& t, i32 at) const {
    const AttentionParams& p = t.params();
    return t.Operand<const float>(AttentionOperand::kQkv) +
           static_cast<u64>(static_cast<u32>((row_start + at) * p.kv_heads + t.at.at[1])) * static_cast<u32>(p.qkv_stride);
  }
  // Partials of the whole tile: one of its first part, one of each chunk behind that. The parts of
  // a tile are neighbours in the table.
  EVT_FN i32 Orders(const Task<AttentionParams>& t) const {
    const AttentionItem* first =
        t.Operand<const AttentionItem>(AttentionOperand::kItems) + t.at.at[0] - item.part;
    return 1 + ChunkOf(item.context + item.q_first + item.q_count - 1) + 1 - first->chunk_end;
  }

 private:
  // The first position that any of the item's queries sees.
  EVT_FN i32 Seen(const AttentionParams& p) const {
    return p.window > 0 ? Max(0, item.context + item.q_first - p.window + 1) : 0;
  }
};

// A task and where its memory is, which the task's rows decide.
struct AttentionSetup {
  AttentionTask task;
  // Of one query token, as a decode row is: its key and value are made with the queries, by all threads, and not by the
  // few that their page's turn comes to. Beside them what a norm's barrier would keep far away.
  bool fresh;
  i32 running_at, results_at;  // bytes
  i32 slots;                   // chunks whose results fit
  i32 orders;                  // AttentionTask::Orders, of a tile of several parts
};

// A task's memory in Scratch. What follows the fixed part is as large as the task's rows need, so that results of
// many chunks fit where rows are few: [queries][of a decode row: key, value; angles, gains][sums so far][results]. Where
// all results are merged at once there are no sums so far, and results lie in their place.
template <class T>
struct AttentionRoom : AttentionSetup {
  union {
    SoftmaxState running_state[2][kMaxAttentionRows];  // before and after a merge, in turn
    float inverse_rms[kMaxLongRows];                   // of queries (and the key behind them), before that
  };
  T* more_queries;  // of a tile of many rows: a page
  i32 query_split;
  LongMemory long_memory;
  u32 fresh_block;

  static EVT_FN AttentionSetup Lay(const Task<AttentionParams>& t, const AttentionTask& task) {
    const AttentionParams& p = t.params();
    AttentionSetup setup = {task, false, 0, 0, 0, task.item.parts > 1 ? task.Orders(t) : 1};
    const i32 element = static_cast<i32>(sizeof(T));
    const i32 elements = task.rows * p.head_dim;
    const i32 result_bytes = task.rows * ResultFloats(p.head_dim) * 4;
    const i32 fresh_bytes = p.head_dim * (2 * element + (p.qk_norm ? 4 + 2 * element : 0));
    setup.running_at = elements * element;
    setup.results_at = setup.running_at + elements * 4;
    setup.fresh = task.item.appended == 0 && task.item.q_count == 1 &&
                  task.high > task.item.context + task.item.q_first &&
                  setup.results_at + fresh_bytes + result_bytes <= MemoryBytes();
    if (setup.fresh) {
      setup.running_at += fresh_bytes;
      setup.results_at += fresh_bytes;
    }
    // Sums so far are needed only where results are merged more than once.
    const bool once = task.Near(p, element, task.item.chunk_first, task.item.chunk_end);
    if (once && setup.running_at + (task.item.chunk_end - task.item.chunk_first) * result_bytes <= MemoryBytes()) {
      setup.results_at = setup.running_at;
    }
    setup.slots = (MemoryBytes() - setup.results_at) / Max(1, result_bytes);
    return setup;
  }
  EVT_FN void Set(const AttentionSetup& setup) {
    static_cast<AttentionSetup&>(*this) = setup;
    more_queries = nullptr;
    query_split = 1 << 30;
  }

  // The pages of a tile of many rows: first the one for queries from row `split` on.
  EVT_FN void AddPage(i32 number, u8* page, i32 split) {
    if (number > 0) {
      long_memory.pages[number - 1] = page;
      return;
    }
    more_queries = reinterpret_cast<T*>(page);
    query_split = split;
    long_memory.near = Memory() + kPageBytes;  // behind as many queries as Scratch may hold
  }

  EVT_FN QueryRows<T> queries() { return {reinterpret_cast<T*>(Memory()), more_queries, query_split}; }
  EVT_FN T* fresh_token(i32 head_dim) { return reinterpret_cast<T*>(Memory()) + task.rows * head_dim; }  // key, value
  EVT_FN float* angles(i32 head_dim) { return reinterpret_cast<float*>(fresh_token(head_dim) + 2 * head_dim); }
  EVT_FN T* gains(i32 head_dim) { return reinterpret_cast<T*>(angles(head_dim) + head_dim); }  // of queries, of keys
  EVT_FN float* running() { return reinterpret_cast<float*>(Memory() + running_at); }  // [row][head_dim]
  EVT_FN float* results() { return reinterpret_cast<float*>(Memory() + results_at); }  // [chunk][row][ResultFloats]

  template <class W>
  static EVT_FN AttentionRoom& Of(W& w) {
    // The most rows there may be, of either kind, and the results of one chunk.
    constexpr i32 kElements = AttentionElements(static_cast<i32>(sizeof(T)));
    static_assert(kElements * (static_cast<i32>(sizeof(T)) + 8) + kMaxAttentionRows * 8 <= MemoryBytes(), "scratch");
    static_assert(static_cast<i32>(kPageBytes) + kMaxLongRows * static_cast<i32>(sizeof(SoftmaxState)) <= MemoryBytes(),
                  "as many queries as the other half of many rows has, and their states");
    return *reinterpret_cast<AttentionRoom*>(w.Scratch());
  }

 private:
  static EVT_FN constexpr i32 FixedBytes() { return RoundUp(static_cast<i32>(sizeof(AttentionRoom)), 16); }
  static EVT_FN constexpr i32 MemoryBytes() { return static_cast<i32>(kScratchBytes) - FixedBytes(); }
  EVT_FN u8* Memory() { return reinterpret_cast<u8*>(this) + FixedBytes(); }
};

}  // namespace eventide
