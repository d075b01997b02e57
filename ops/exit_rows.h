// The rows that leave at one point of early exit (ops/exit_tables.h), in one task: where every token goes,
// attention's table without the items of those rows, and the counts of the layers up to the next point.
#pragma once

#include "device/op.h"
#include "ops/exit_tables.h"
#include "ops/scan.h"
#include "ops/step_tables.h"

namespace eventide {

struct ExitRows {
  static constexpr OpInfo kInfo = {
      "exit_rows",
      10,
      {In("row_start"), In("before"), InOut("decided"), InOut("row_place"), InOut("items"),
       InOut("output_place"), InOut("total"), Out("target"), Out("left"), Out("counts")}};
  enum : int {
    kRowStart,
    kBefore,       // the line of the layer in front
    kDecided,      // i32[token], in the order of those who are left
    kRowPlace,     // i32[row]: its first token in that order; -1: the row has left
    kItems,        // AttentionItem[]
    kOutputPlace,  // i32[output]: where its token's state lies
    kTotal,        // u64: tokens that have left behind the layer, in all steps
    kTarget,       // i32[token]: where the point moves it
    kLeft,         // ExitPlace[], in the order of leaving
    kCounts,       // i32[layers + 1][kExitCounts]
  };

  static constexpr i32 kMaxRows = 1024;

  struct Params {
    DimRef tokens;
    ExitPoints points;
    i32 layers;
  };

  template <class T, class W>
  static EVT_FN void Compute(W& w, const Task<Params>& t) {
    const i32 rows = Min(static_cast<i32>(t.step.header->rows), kMaxRows);
    // Of each row: tokens that stay, that leave, that are here now; then the sums of those before.
    i32* stay_of = reinterpret_cast<i32*>(w.Scratch());
    i32 *leave_of = stay_of + kMaxRows, *here_of = stay_of + 2 * kMaxRows;
    Memory& m = *reinterpret_cast<Memory*>(stay_of + 3 * kMaxRows);
    const i32* before = t.Operand<const i32>(kBefore);
    const i32 here = before[kExitStay], left = before[kExitLeft], items = before[kExitItems];
    const i32* row_start = t.Operand<const i32>(kRowStart);
    i32* row_place = t.Operand<i32>(kRowPlace);
    i32* decided = t.Operand<i32>(kDecided);
    w.Parallel(rows, [&](i32 r) {
      const i32 place = row_place[r];
      const i32 length = place < 0 ? 0 : row_start[r + 1] - row_start[r];
      bool stays = false;
      // Most rows have one token, and of long ones most end here at once.
      EVT_ROLLED
      for (i32 i = 0; i < length && !stays; ++i) stays = decided[place + i] == 0;
      stay_of[r] = stays ? length : 0;
      leave_of[r] = stays ? 0 : length;
      here_of[r] = length;
    });
    ScanExclusive(w, stay_of, 3, kMaxRows, rows, m.totals);
    const i32 stay = m.totals[0], leaving = m.totals[1];
    const auto stays = [&](i32 r) { return (r + 1 < rows ? stay_of[r + 1] : stay) > stay_of[r]; };
    const i32 tokens = t.Dim(t.params().tokens);
    i32* target = t.Operand<i32>(kTarget);
    ExitPlace* place = t.Operand<ExitPlace>(kLeft);
    w.Parallel(here, [&](i32 token) {
      const i32 r = FindSpan(here_of, rows, token), at = token - here_of[r];
      if (stays(r)) {
        target[token] = stay_of[r] + at;
        return;
      }
      const i32 index = left + leave_of[r] + at;
      target[token] = tokens + index;
      const u32 slot = t.step.Rows()[r].slot;
      place[index] = {static_cast<i32>(slot),
                      static_cast<i32>(t.step.Slots()[slot].context_length) + at};
    });
    // Sums of ones: exact.
    w.RowSums(
        1, here,
        [&](i32, i32 token) {
          return decided[token] && stays(FindSpan(here_of, rows, token)) ? 1.0f : 0.0f;
        },
        [&](i32, float sum) { m.held = sum > 0.0f ? 1 : 0; });
    w.Sync();
    i32 kept = items;
    if (leaving > 0) {
      i32* output_place = t.Operand<i32>(kOutputPlace);
      w.Parallel(before[kExitOutputs], [&](i32 i) {
        if (output_place[i] < tokens) output_place[i] = target[output_place[i]];
      });
      MoveFlags(w, m, decided, target, here, tokens);
      kept = KeepItems(w, t, m, items, stays);
      w.Parallel(rows, [&](i32 r) {
        if (row_place[r] >= 0) row_place[r] = stays(r) ? stay_of[r] : -1;
      });
      w.Parallel(1, [&](i32) { *t.Operand<u64>(kTotal) += static_cast<u64>(leaving); });
    }
    PublishExits(w, t.Operand<i32>(kCounts), t.params().points, t.at.layer + 1, t.params().layers + 1,
                 {stay, left + leaving, kept, before[kExitOutputs], leaving > 0 || m.held ? 1 : 0, m.held});
  }

 private:
  static constexpr i32 kItemsAtOnce = 64, kFlagsAtOnce = 512;
  // Behind three numbers of each row.
  struct Memory {
    i32 totals[4];
    union {
      AttentionItem items[kItemsAtOnce];
      i32 flags[kFlagsAtOnce];
    };
    i32 kept[kItemsAtOnce];
    i32 held;
  };
  static_assert(3 * kMaxRows * 4 + sizeof(Memory) <= kScratchBytes);

  // Flags go with their tokens: forward, so that a turn never writes what a later one reads.
  template <class W>
  static EVT_FN void MoveFlags(W& w, Memory& m, i32* decided, const i32* target, i32 here,
                               i32 tokens) {
    EVT_ROLLED
    for (i32 first = 0; first < here; first += kFlagsAtOnce) {
      const i32 count = Min(here - first, kFlagsAtOnce);
      w.Sync();
      w.Parallel(count, [&](i32 i) { m.flags[i] = decided[first + i]; });
      w.Sync();
      w.Parallel(count, [&](i32 i) {
        if (target[first + i] < tokens) decided[target[first + i]] = m.flags[i];
      });
    }
    w.Sync();
  }

  // Items of rows that stay, in their order: parts of a tile stay neighbours. How many there are.
  template <class W, class Stays>
  static EVT_FN i32 KeepItems(W& w, const Task<Params>& t, Memory& m, i32 items,
                              const Stays& stays) {
    AttentionItem* item = t.Operand<AttentionItem>(kItems);
    i32 kept = 0;
    EVT_ROLLED
    for (i32 first = 0; first < items; first += kItemsAtOnce) {
      const i32 count = Min(items - first, kItemsAtOnce);
      w.Sync();
      w.Parallel(count, [&](i32 i) {
        m.items[i] = item[first + i];
        m.kept[i] = stays(m.items[i].row) ? 1 : 0;
      });
      ScanExclusive(w, m.kept, 1, kItemsAtOnce, count, m.totals + 3);
      w.Parallel(count, [&](i32 i) {
        const i32 next = i + 1 < count ? m.kept[i + 1] : m.totals[3];
        if (next > m.kept[i]) item[kept + m.kept[i]] = m.items[i];
      });
      kept += m.totals[3];
    }
    w.Sync();
    return kept;
  }
};

}  // namespace eventide
