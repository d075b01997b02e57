// One task at the head of a step that turns rows into tables (ops/step_tables.h): where each row's
// tokens lie, which tokens need logits, and attention items. Long contexts are cut into parts so
// that every worker has about the same number of KV pages to read; no bits depend on how.
#pragma once

#include "device/op.h"
#include "ops/scan.h"
#include "ops/step_tables.h"

namespace eventide {

struct Plan {
  static constexpr OpInfo kInfo = {"plan",
                                   6,
                                   {Out("row_start"), Out("token_row"), Out("row_output"),
                                    Out("output_token"), Out("items"), Out("counts")}};
  enum : int { kRowStart, kTokenRow, kRowOutput, kOutputToken, kItems, kCounts };

  static constexpr i32 kMaxRows = 1024;
  static constexpr i32 kMaxParts = 64;
  static constexpr i32 kMinPages =
      2;  // a part reads at least so many KV pages, or its hop costs more

  struct Params {
    i32 head_dim, kv_heads, group;
    i32 window;        // 0: none
    i32 max_items;     // at least MinAttentionItems
    i32 max_partials;  // partial slots; 0: nothing is split
    i32 max_groups;    // tiles that may be split
    i32 max_outputs;   // rows whose outputs do not fit get none
  };

  template <class T, class W>
  static EVT_FN void Compute(W& w, const Task<Params>& t) {
    i32* a = reinterpret_cast<i32*>(w.Scratch());
    Memory m{a, a + kMaxRows, a + 2 * kMaxRows, a + 3 * kMaxRows};
    const i32 rows = Min(static_cast<i32>(t.step.header->rows), kMaxRows);
    Tokens(w, t, m, rows);
    Items(w, t, m, rows, KvPageTokens(t.params().head_dim, static_cast<i32>(sizeof(T))));
  }

 private:
  struct Memory {
    i32 *a, *b, *c;  // one element per row; kMaxRows apart (ScanExclusive)
    i32* sums;
  };

  static_assert((3 * kMaxRows + 3 * kScanSums) * 4 <= static_cast<i32>(kScratchBytes), "Memory");

  // What a row asks of attention.
  struct RowWork {
    i32 context, length, tiles, pages;  // pages: of the row's most expensive tile
    i32 chunks;                         // that any of its tiles may see
  };

  static EVT_FN i32 Low(const Params& p, i32 position) {
    return p.window > 0 ? Max(0, position - p.window + 1) : 0;
  }

  static EVT_FN RowWork WorkOf(const Task<Params>& t, i32 r, i32 page_tokens) {
    const Params& p = t.params();
    const Row& row = t.step.Rows()[r];
    RowWork work;
    work.context = static_cast<i32>(t.step.Slots()[row.slot].context_length);
    work.length = QueryLength(row, t.step.Slots(), t.step.header->step);
    const i32 tile = AttentionTile(p.head_dim, p.group);
    work.tiles = CeilDiv(work.length, tile);
    const i32 last = work.context + work.length - 1;
    work.pages = (last - Low(p, Max(work.context, last - tile + 1))) / page_tokens + 1;
    work.chunks = ChunkOf(Max(last, 0)) - ChunkOf(Low(p, work.context)) + 1;
    return work;
  }

  static EVT_FN i32 PartsOf(const RowWork& work, i32 share) {
    return Max(1, Min(Min(CeilDiv(work.pages, share), work.chunks), kMaxParts));
  }

  template <class W>
  static EVT_FN void Tokens(W& w, const Task<Params>& t, const Memory& m, i32 rows) {
    const Params& p = t.params();
    const Row* row = t.step.Rows();
    w.Parallel(rows, [&](i32 r) {
      const i32 length = QueryLength(row[r], t.step.Slots(), t.step.header->step);
      m.a[r] = length;
      m.b[r] = OutputsOf(row[r], length);
    });
    ScanExclusive(w, m.a, 2, kMaxRows, rows, m.sums);
    const i32 tokens = ScanTotal(m.sums, 0), outputs = ScanTotal(m.sums, 1);
    i32* row_start = t.Operand<i32>(kRowStart);
    i32* token_row = t.Operand<i32>(kTokenRow);
    i32* row_output = t.Operand<i32>(kRowOutput);
    i32* output_token = t.Operand<i32>(kOutputToken);
    w.Parallel(rows, [&](i32 r) {
      const i32 length = (r + 1 < rows ? m.a[r + 1] : tokens) - m.a[r];
      const i32 count = OutputsOf(row[r], length);
      row_start[r] = m.a[r];
      row_output[r] = count > 0 && m.b[r] + count <= p.max_outputs ? m.b[r] : -1;
    });
    w.Parallel(tokens, [&](i32 token) {
      const i32 r = FindSpan(m.a, rows, token);
      token_row[token] = r;
      const i32 length = (r + 1 < rows ? m.a[r + 1] : tokens) - m.a[r];
      const i32 at = token - m.a[r];
      const i32 count = OutputsOf(row[r], length);
      if (count == 0 || m.b[r] + count > p.max_outputs || at < length - count) return;
      output_token[m.b[r] + at - (length - count)] = token;
    });
    w.Parallel(1, [&](i32) {
      row_start[rows] = tokens;
      i32* counts = t.Operand<i32>(kCounts);
      // After the first row that does not fit none does, so the outputs kept are those before it.
      counts[kCountOutputs] =
          outputs <= p.max_outputs ? outputs : m.b[FindSpan(m.b, rows, p.max_outputs)];
      counts[kCountTokens] = tokens;
    });
    w.Sync();
  }

  static EVT_FN i32 OutputsOf(const Row& row, i32 length) {
    if (row.sampling & kRowAllLogits) return length;
    // A draft is checked by what follows the token before it.
    if (row.query_length == kDeviceKnows && (row.sampling & kRowSample)) return length;
    return row.sampling & kRowSample ? Min(length, 1) : 0;
  }

  template <class W>
  static EVT_FN void Items(W& w, const Task<Params>& t, const Memory& m, i32 rows,
                           i32 page_tokens) {
    const Params& p = t.params();
    const i32 tile = AttentionTile(p.head_dim, p.group);
    const i64 tasks_per_item = static_cast<i64>(p.kv_heads) * AttentionSplits(p.head_dim, p.group);
    // The first turn counts pages. Then fewer parts when a table is too short for as many as the workers
    // could use.
    i32 share = 0, items = 0, groups = 0;
    for (i32 attempt = -1;; ++attempt) {
      if (attempt == 12 || (attempt >= 0 && p.max_partials == 0)) share = 0x7fffffff;
      w.Sync();
      w.Parallel(rows, [&](i32 r) {
        const RowWork work = WorkOf(t, r, page_tokens);
        const i32 parts = attempt < 0 ? work.pages : PartsOf(work, share);
        m.a[r] = work.tiles * parts;
        m.b[r] = parts > 1 ? work.tiles * tile * work.chunks : 0;
        m.c[r] = parts > 1 ? work.tiles : 0;
      });
      ScanExclusive(w, m.a, 3, kMaxRows, rows, m.sums);
      items = ScanTotal(m.sums, 0);
      const i32 partials = ScanTotal(m.sums, 1);
      groups = ScanTotal(m.sums, 2);
      if (attempt < 0) {
        share = Max(kMinPages, static_cast<i32>(items * tasks_per_item / w.workers) + 1);
        continue;
      }
      if (share == 0x7fffffff) break;
      if (items <= p.max_items && partials <= p.max_partials && groups <= p.max_groups) break;
      share *= 2;
    }
    AttentionItem* out = t.Operand<AttentionItem>(kItems);
    w.Parallel(items, [&](i32 i) {
      const i32 r = FindSpan(m.a, rows, i);
      const RowWork work = WorkOf(t, r, page_tokens);
      const i32 parts = PartsOf(work, share);
      const i32 index = (i - m.a[r]) / parts;
      const i32 base = m.b[r] + index * tile * work.chunks;
      out[i] = ItemOf(p, work, r, index, (i - m.a[r]) % parts, parts, m.c[r] + index, base);
    });
    w.Parallel(1, [&](i32) {
      i32* counts = t.Operand<i32>(kCounts);
      counts[kCountItems] = items;
      counts[kCountGroups] = groups;
    });
  }

  // Part `part` of a tile: its share of the tile's positions, cut at chunk boundaries.
  static EVT_FN AttentionItem ItemOf(const Params& p, const RowWork& work, i32 row, i32 index,
                                     i32 part, i32 parts, i32 group, i32 partial_base) {
    const i32 tile = AttentionTile(p.head_dim, p.group);
    AttentionItem item;
    item.row = row;
    item.q_first = index * tile;
    item.q_count = Min(tile, work.length - item.q_first);
    const i32 low = Low(p, work.context + item.q_first);
    const i32 high = work.context + item.q_first + item.q_count;
    item.chunk_first = Cut(low, high, part, parts);
    item.chunk_end = Cut(low, high, part + 1, parts);
    item.part = part;
    item.parts = parts;
    item.group = group;
    item.partial_base = partial_base;
    // Part 0 leaves one partial, the others one for each of their chunks.
    item.first_order = part == 0 ? 0 : 1 + item.chunk_first - Cut(low, high, 1, parts);
    item.spare[0] = item.spare[1] = 0;
    return item;
  }

  // The first chunk of part `part` when [low, high) is cut into equal parts; the first part is
  // never empty.
  static EVT_FN i32 Cut(i32 low, i32 high, i32 part, i32 parts) {
    if (part == 0) return ChunkOf(low);
    if (part == parts) return ChunkOf(high - 1) + 1;
    const i32 length = high - low;  // length * kMaxParts might overflow
    const i32 position = low + length / parts * part + length % parts * part / parts;
    return ChunkOf(Max(low, position - 1)) + 1;
  }
};

}  // namespace eventide
