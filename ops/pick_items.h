// Attention's table of items (ops/step_tables.h) over what rows have picked, in one task: as `plan` makes it of
// whole sequences. How many items there are only the device knows.
#pragma once

#include "device/op.h"
#include "ops/scan.h"
#include "ops/step_tables.h"

namespace eventide {

struct PickItems {
  static constexpr OpInfo kInfo = {
      "pick_items", 4, {In("row_start"), In("picked"), Out("items"), Out("counts")}};
  enum : int { kRowStart, kPicked, kItems, kCounts };

  static constexpr i32 kMaxRows = 1024;

  struct Params {
    i32 head_dim, group;
    i32 part_chunks;  // of a part of a tile: no bits depend on it
    i32 max_items, max_partials, max_groups;
  };

  template <class T, class W>
  static EVT_FN void Compute(W& w, const Task<Params>& t) {
    const Params& p = t.params();
    const i32 tile = AttentionTile(p.head_dim, p.group, static_cast<i32>(sizeof(T)));
    const i32 rows = Min(static_cast<i32>(t.step.header->rows), kMaxRows);
    // Of each row: items, partials, tiles of several parts; then the sums of those before.
    i32* items_of = reinterpret_cast<i32*>(w.Scratch());
    i32 *partials_of = items_of + kMaxRows, *groups_of = items_of + 2 * kMaxRows;
    i32* totals = items_of + 3 * kMaxRows;
    i32 part_chunks = p.part_chunks;
    EVT_ROLLED
    for (;;) {
      w.Parallel(rows, [&](i32 r) {
        const Work work(t, r, part_chunks, tile);
        items_of[r] = work.tiles * work.parts;
        partials_of[r] = work.parts > 1 ? work.length * work.chunks : 0;
        groups_of[r] = work.parts > 1 ? work.tiles : 0;
      });
      ScanExclusive(w, items_of, 3, kMaxRows, rows, totals);
      if (part_chunks == kWhole ||
          (totals[0] <= p.max_items && totals[1] <= p.max_partials && totals[2] <= p.max_groups)) {
        break;
      }
      part_chunks = kWhole;  // no room for parts
      w.Sync();
    }
    AttentionItem* items = t.Operand<AttentionItem>(kItems);
    w.Parallel(totals[0], [&](i32 i) {
      const i32 r = FindSpan(items_of, rows, i), at = i - items_of[r];
      const Work work(t, r, part_chunks, tile);
      AttentionItem item = {};
      item.row = r;
      const i32 index = at / work.parts;
      item.q_first = index * tile;
      item.q_count = Min(tile, work.length - item.q_first);
      const i32 end = ChunkOf(work.context + item.q_first + item.q_count - 1) + 1;
      item.part = at % work.parts;
      item.parts = work.parts;
      item.chunk_first = work.parts == 1 ? 0 : Min(item.part * part_chunks, end);
      item.chunk_end = item.part + 1 == work.parts ? end : Min((item.part + 1) * part_chunks, end);
      item.group = groups_of[r] + index;
      item.partial_base = partials_of[r] + index * tile * work.chunks;
      item.first_order = item.part == 0 ? 0 : 1 + item.chunk_first - Min(part_chunks, end);
      item.slot = static_cast<i32>(t.step.Rows()[r].slot);
      item.context = work.context;
      items[i] = item;
    });
    w.Parallel(1, [&](i32) {
      i32* counts = t.Operand<i32>(kCounts);
      counts[kCountItems] = totals[0];
      counts[kCountGroups] = totals[2];
    });
  }

 private:
  static constexpr i32 kWhole = 0x7fffffff;

  struct Work {
    i32 context, length, tiles, chunks, parts;
    EVT_FN Work(const Task<Params>& t, i32 r, i32 part_chunks, i32 tile) {
      const i32* row_start = t.Operand<const i32>(kRowStart);
      context = t.Operand<const i32>(kPicked)[r];
      length = row_start[r + 1] - row_start[r];
      tiles = CeilDiv(length, tile);
      chunks = ChunkOf(Max(context + length - 1, 0)) + 1;
      parts = part_chunks == kWhole ? 1 : CeilDiv(chunks, part_chunks);
    }
  };
};

}  // namespace eventide
