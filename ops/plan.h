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
  // Positions that a part covers at least. Parts cost a merge through memory, and workers that read KV stream no
  // weights: where the smaller ones would keep more than half of the workers, they are twice as long. (Measured on
  // an H200 with 8 KV heads, context 512: at one row the smaller ones make a step 4 to 5 % shorter, at eight rows 1 to
  // 4 % longer.)
  static constexpr i32 kPartTokens = 256;
  // Query tokens from which on a row has large tiles over keys that `append_kv` has put into the cache, in steps in
  // which that has tasks. Behind long contexts only if there are enough of these tiles for the workers: they have no parts.
  // (Measured on an H200, llama-3.1-8b, a row alone: 32, 40, 48 and 63 tokens in small tiles take 6.2, 7.8, 8.2 and 9.9 ms,
  // 64 in large ones 6.6.)
  static constexpr i32 kLongTokens = 40;
  static constexpr i32 kLongContext = 4096;
  // How long a context may be, then, of a row that has so many tokens beyond the fewest: small tiles cost by their tokens,
  // few large ones by their contexts.
  static EVT_FN constexpr i32 LongContext(i32 beyond) { return Min(2048 + beyond * 256, kLongContext); }

  struct Params {
    i32 head_dim, kv_heads, group;
    i32 window;        // 0: none
    i32 max_items;     // at least MinAttentionItems
    i32 max_partials;  // partial slots; 0: nothing is split
    i32 max_groups;    // tiles that may be split
    i32 max_outputs;   // rows whose outputs do not fit get none
    i32 part_tokens;   // that a part covers at least; 0: kPartTokens, or twice as many
    i32 long_tokens;   // 0: kLongTokens
    DimRef appends = {-1, 0};  // tasks of append_kv; 0 of them: no row has large tiles
  };

  template <class T, class W>
  static EVT_FN void Compute(W& w, const Task<Params>& t) {
    const i32 long_rows = W::template LongAttention<T>::Rows(t.params().head_dim);
    const Shape shape(t, static_cast<i32>(sizeof(T)), long_rows, static_cast<i32>(t.step.header->workers));
    i32* a = reinterpret_cast<i32*>(w.Scratch());
    const Memory m{a,
                   a + kMaxRows,
                   a + 2 * kMaxRows,
                   a + 3 * kMaxRows,
                   a + 4 * kMaxRows,
                   a + 5 * kMaxRows};
    const i32 rows = Min(static_cast<i32>(t.step.header->rows), kMaxRows);
    const Row* row = t.step.Rows();
    w.Parallel(rows, [&](i32 r) {
      m.context[r] = static_cast<i32>(t.step.Slots()[row[r].slot].context_length);
      m.length[r] = QueryLength(row[r], t.step.Slots(), t.step.header->step);
      const RowWork work = WorkOf(t.params(), m, r, shape);
      m.a[r] = work.length;
      m.b[r] = OutputsOf(row[r], work.length);
      m.c[r] = work.tiles * work.pages;
    });
    ScanExclusive(w, m.a, 3, kMaxRows, rows, m.totals);
    const i32 pages = m.totals[2];
    Tokens(w, t, m, rows);
    Items(w, t, m, rows, pages, shape);
  }

 private:
  struct Memory {
    i32 *a, *b, *c;  // one element per row; kMaxRows apart (ScanExclusive)
    i32 *context, *length;
    i32* totals;
  };
  static_assert((5 * kMaxRows + 3) * 4 <= static_cast<i32>(kScratchBytes), "Memory");

  // How this model's attention is cut.
  struct Shape {
    i32 page_tokens, tile, tasks_per_item;
    i32 long_tile, long_least, many_tiles;  // of rows of many query tokens
    EVT_FN Shape(const Task<Params>& t, i32 bytes, i32 long_rows, i32 workers) {
      const Params& p = t.params();
      page_tokens = KvPageTokens(p.head_dim, bytes);
      tile = AttentionTile(p.head_dim, p.group, bytes);
      tasks_per_item = p.kv_heads * AttentionSplits(p.head_dim, p.group, bytes);
      long_tile = long_rows / AttentionHeads(p.head_dim, p.group, bytes);
      long_least = t.Dim(p.appends) == 0 ? 0x7fffffff : p.long_tokens > 0 ? p.long_tokens : kLongTokens;
      many_tiles = CeilDiv(workers, 2 * tasks_per_item);
    }
  };

  // What a row asks of attention.
  struct RowWork {
    i32 context, length, appended, tile;
    i32 tiles, pages;                   // pages: of the row's most expensive tile
    i32 chunks;                         // that any of its tiles may see
  };

  static EVT_FN i32 Low(const Params& p, i32 position) {
    return p.window > 0 ? Max(0, position - p.window + 1) : 0;
  }

  static EVT_FN RowWork WorkOf(const Params& p, const Memory& m, i32 r, const Shape& shape) {
    RowWork work;
    work.context = m.context[r];
    work.length = m.length[r];
    work.appended = work.length >= shape.long_least &&
                    (work.context <= LongContext(work.length - shape.long_least) ||
                     CeilDiv(work.length, shape.long_tile) >= shape.many_tiles);
    work.tile = work.appended ? shape.long_tile : shape.tile;
    work.tiles = CeilDiv(work.length, work.tile);
    const i32 last = work.context + work.length - 1;
    work.pages =
        (last - Low(p, Max(work.context, last - work.tile + 1))) / shape.page_tokens + 1;
    work.chunks = ChunkOf(Max(last, 0)) - ChunkOf(Low(p, work.context)) + 1;
    return work;
  }

  static EVT_FN i32 PartsOf(const RowWork& work, i32 share) {
    if (work.appended) return 1;  // merged in registers
    return Max(1, Min(Min(work.pages / share, work.chunks), kMaxParts));
  }

  template <class W>
  static EVT_FN void Tokens(W& w, const Task<Params>& t, const Memory& m, i32 rows) {
    const Params& p = t.params();
    const Row* row = t.step.Rows();
    const i32 tokens = m.totals[0], outputs = m.totals[1];
    i32* row_start = t.Operand<i32>(kRowStart);
    i32* token_row = t.Operand<i32>(kTokenRow);
    i32* row_output = t.Operand<i32>(kRowOutput);
    i32* output_token = t.Operand<i32>(kOutputToken);
    w.Parallel(rows, [&](i32 r) {
      const i32 count = OutputsOf(row[r], m.length[r]);
      row_start[r] = m.a[r];
      row_output[r] = count > 0 && m.b[r] + count <= p.max_outputs ? m.b[r] : -1;
    });
    w.Parallel(tokens, [&](i32 token) {
      const i32 r = FindSpan(m.a, rows, token);
      token_row[token] = r;
      const i32 length = m.length[r], at = token - m.a[r];
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
  }

  static EVT_FN i32 OutputsOf(const Row& row, i32 length) {
    if (row.sampling & kRowAllLogits) return length;
    // A draft is checked by what follows the token before it.
    if (row.query_length == kDeviceKnows && (row.sampling & (kRowSample | kRowKnown)) == kRowSample) {
      return length;
    }
    return row.sampling & kRowSample ? Min(length, 1) : 0;
  }

  template <class W>
  static EVT_FN void Items(W& w, const Task<Params>& t, const Memory& m, i32 rows, i32 pages,
                           const Shape& shape) {
    const Params& p = t.params();
    const i64 all = static_cast<i64>(pages) * shape.tasks_per_item;
    const i32 least = Max(1, (p.part_tokens > 0 ? p.part_tokens : kPartTokens) / shape.page_tokens);
    const bool many = p.part_tokens == 0 && all * 2 > static_cast<i64>(least) * t.step.header->workers;
    // Fewer parts when a table is too short for as many as the workers could use.
    i32 share = Max(many ? least * 2 : least, static_cast<i32>(all / t.step.header->workers));
    i32 items = 0, groups = 0;
    EVT_ROLLED
    for (i32 attempt = 0;; ++attempt) {
      if (attempt == 12 || p.max_partials == 0) share = 0x7fffffff;
      w.Sync();
      w.Parallel(rows, [&](i32 r) {
        const RowWork work = WorkOf(p, m, r, shape);
        const i32 parts = PartsOf(work, share);
        m.a[r] = work.tiles * parts;
        m.b[r] = parts > 1 ? work.length * work.chunks : 0;
        m.c[r] = parts > 1 ? work.tiles : 0;
      });
      ScanExclusive(w, m.a, 3, kMaxRows, rows, m.totals);
      items = m.totals[0];
      groups = m.totals[2];
      if (share == 0x7fffffff) break;
      if (items <= p.max_items && m.totals[1] <= p.max_partials && groups <= p.max_groups) break;
      share *= 2;
    }
    AttentionItem* out = t.Operand<AttentionItem>(kItems);
    w.Parallel(items, [&](i32 i) {
      const i32 r = FindSpan(m.a, rows, i);
      const RowWork work = WorkOf(p, m, r, shape);
      const i32 parts = PartsOf(work, share);
      // Whoever comes first gets the longest of many: those that see most.
      const i32 number = (i - m.a[r]) / parts;
      const i32 index = work.appended ? work.tiles - 1 - number : number;
      const i32 base = m.b[r] + index * work.tile * work.chunks;
      out[i] = ItemOf(p, work, r, static_cast<i32>(t.step.Rows()[r].slot), index, (i - m.a[r]) % parts,
                      parts, m.c[r] + index, base);
    });
    w.Parallel(1, [&](i32) {
      i32* counts = t.Operand<i32>(kCounts);
      counts[kCountItems] = items;
      counts[kCountGroups] = groups;
    });
  }

  // Part `part` of a tile: its share of the tile's positions, cut at chunk boundaries.
  static EVT_FN AttentionItem ItemOf(const Params& p, const RowWork& work, i32 row, i32 slot, i32 index,
                                     i32 part, i32 parts, i32 group, i32 partial_base) {
    AttentionItem item;
    item.row = row;
    item.q_first = index * work.tile;
    item.q_count = Min(work.tile, work.length - item.q_first);
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
    item.slot = slot;
    item.context = work.context;
    item.appended = work.appended;
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
