// From router logits to the tables of a layer's experts (ops/expert_tables.h), in two grids of this op:
//
//   choose  one task for 8 tokens: each token's experts and their weights; no tasks in steps of at most 8
//           tokens
//   route   one task: chooses for those 8 tokens itself, then groups all pairs by expert, in the order of
//           tokens, by prefix sums
//
// Tie rule: experts are ordered by (logit descending, id ascending); NaN comes last, -0 equals +0. Scores rise
// with logits, so choosing by logits is choosing by scores, without ties that rounding makes.
//
// Weights: score / (sum of scores) * scale, where the score is the softmax's numerator or the sigmoid. The
// sum is that of the chosen ones if they are normalised, of all experts for a softmax that is not, and 1 for
// a sigmoid that is not.
//
// How many row tiles a task of an expert linear takes depends on how many tiles of slots there are: few experts
// have to be cut into as many tasks as there are workers, and of many experts each task takes as much as leaves
// no worker without one at the end, since its beginning and end cost as much as several pages.
#pragma once

#include "device/op.h"
#include "ops/expert_tables.h"
#include "ops/scan.h"
#include "ops/select.h"
#include "ops/step_tables.h"

namespace eventide {

struct Route {
  static constexpr OpInfo kInfo = {
      "route",
      13,
      {In("logits"), In("drawn"), Out("pairs"), Out("counts"), In("all_pairs"), In("all_counts"),
       Out("bases"), Out("pair_slot"), Out("slot_token"), Out("tiles"),
       Out("tile_count"), In("count"), Out("splits")}};
  enum : int {
    kLogits,     // float[tokens][logits_stride]
    kDrawn,      // i32[draws][top_k]: experts to take instead of those chosen, for benches; < 0: do not
    kPairs,      // RoutedPair[tokens][top_k]
    kCounts,     // i32[tokens / 8][experts]: pairs of each expert in a group of 8 tokens
    kAllPairs,   // the same tensors, as the grouping reads what other tasks chose
    kAllCounts,
    kBases,      // i32[tokens / 8][experts]: kCounts of the groups before
    kPairSlot,   // i32[tokens][top_k]
    kSlotToken,  // i32[slots]
    kTiles,      // ExpertTile[tiles + 1]
    kTileCount,  // i32: the number of tiles, and 1 where there are none
    kCount,      // i32[]: see Params
    kSplits,     // i32[kExpertLinears]: tasks of a tile of slots
  };

  static constexpr i32 kTokens = 8;  // of a task that chooses
  static constexpr i32 kMaxExperts = 1024;
  static constexpr i32 kDrawsOfStep = 1024;  // lines of "drawn" from one step's first token to the next's

  struct Params {
    DimRef tokens;
    i32 count_index;  // >= 0: the element of operand "count" that holds them
    i32 experts, top_k;
    i32 logits_stride;
    i32 draws;      // > 0: lines of "drawn", taken in turn over tokens and steps
    i32 groups;     // this task groups; else it only chooses
    i32 sigmoid;    // scores; else softmax
    i32 normalise;
    float scale;
    i32 row_tiles[kExpertLinears];  // of one expert
    i32 wave;                       // tasks that run at once; 0: as many as there are workers
  };

  template <class T, class W>
  static EVT_FN void Compute(W& w, const Task<Params>& t) {
    const Params& p = t.params();
    const i32 tokens =
        p.count_index < 0 ? t.Dim(p.tokens) : t.Operand<const i32>(kCount)[p.count_index];
    Memory& m = *reinterpret_cast<Memory*>(w.Scratch());
    const bool alone = p.groups && tokens <= kTokens;
    if (!p.groups || alone) Choose(w, t, m, tokens);
    if (p.groups) Group(w, t, m, tokens, alone);
  }

 private:
  static constexpr i32 kLogitsAtOnce = 2048;
  static constexpr i32 kPairsHere = 128;  // of a task that chooses, that fit; others lie in the tensor at once
  static constexpr i32 kChoices = 16;     // of row tiles for a task that are compared
  static constexpr float kLog2E = 1.4426950408889634f;
  static_assert(kLogitsAtOnce >= kMaxExperts);

  // What the task's threads share: memory of the step is a trip to the L2 away each time.
  struct Memory {
    RoutedPair pairs[kPairsHere];
    i32 slots[kMaxExperts];  // of each expert, then those before it
    i32 tiles[kMaxExperts];  // likewise
    i32 pairs_of[kMaxExperts];
    i32 sums[2];  // of slots and tiles
    u32 costs[kExpertLinears * kChoices];
    float top[kTokens], factor[kTokens];
    union {
      float logits[kLogitsAtOnce];  // then scores
      i32 bases[kLogitsAtOnce];     // kBases, if they fit
    };
  };
  static_assert(sizeof(Memory) <= kScratchBytes, "Route");

  // Chooses for the 8 tokens of the task, as many at a time as fit.
  template <class W>
  static EVT_FN void Choose(W& w, const Task<Params>& t, Memory& m, i32 tokens) {
    const Params& p = t.params();
    const i32 first = p.groups ? 0 : t.at.at[0] * kTokens;
    const i32 count = Min(tokens - first, kTokens), all = count * p.top_k;
    RoutedPair* out = t.Operand<RoutedPair>(kPairs) + static_cast<i64>(first) * p.top_k;
    RoutedPair* pairs = all <= kPairsHere ? m.pairs : out;
    w.Parallel(p.experts, [&](i32 expert) { m.pairs_of[expert] = 0; });
    const i32 most = Min(kLogitsAtOnce / p.experts, kTokens);
    EVT_ROLLED
    for (i32 done = 0; done < count; done += most) {
      ChooseSome(w, t, m, first + done, Min(most, count - done), pairs + done * p.top_k);
    }
    w.Sync();
    w.Parallel(all, [&](i32 i) {
      const i32 expert = pairs[i].expert;
      i32 before = 0, same = 0;
      for (i32 k = 0; k < all; ++k) {
        const i32 one = pairs[k].expert == expert ? 1 : 0;
        same += one;
        before += k < i ? one : 0;
      }
      if (before == 0) m.pairs_of[expert] = same;
      pairs[i].order = before;
      out[i] = {expert, before, pairs[i].weight, 0};
    });
    if (p.groups) return;  // nobody reads them
    w.Sync();
    i32* counts = t.Operand<i32>(kCounts) + static_cast<i64>(first / kTokens) * p.experts;
    w.Parallel(p.experts, [&](i32 expert) { counts[expert] = m.pairs_of[expert]; });
  }

  // The experts and weights of n tokens.
  template <class W>
  static EVT_FN void ChooseSome(W& w, const Task<Params>& t, Memory& m, i32 first, i32 n, RoutedPair* pairs) {
    const Params& p = t.params();
    const i32 experts = p.experts, top_k = p.top_k;
    const float* from = t.Operand<const float>(kLogits) + static_cast<i64>(first) * p.logits_stride;
    w.Sync();
    w.Fetch(
        n * experts, [&](i32 i) { return from[i / experts * p.logits_stride + i % experts]; },
        [&](i32 i, float logit) { m.logits[i] = logit; });
    if (p.draws > 0) {
      const i32* drawn = t.Operand<const i32>(kDrawn);
      const u64 line = t.step.header->step * kDrawsOfStep + static_cast<u32>(first);
      w.Parallel(n * top_k, [&](i32 i) {
        const u64 at = (line + static_cast<u32>(i / top_k)) % static_cast<u32>(p.draws);
        pairs[i].spare = drawn[static_cast<i64>(at) * top_k + i % top_k];
      });
    }
    w.Sync();
    w.TopOfRows(
        n, experts, top_k, [&](i32 row, i32 i) { return OrderKey(m.logits[row * experts + i]); },
        [&](i32 row, i32 rank, i32 expert) {
          if (rank == 0) m.top[row] = m.logits[row * experts + expert];
          RoutedPair& pair = pairs[row * top_k + rank];
          const bool draws = p.draws > 0 && pair.spare >= 0;
          pair.expert = draws ? Min(pair.spare, experts - 1) : expert;
        });
    w.Sync();
    w.Parallel(n * experts, [&](i32 i) { m.logits[i] = Score(p, m.logits[i], m.top[i / experts]); });
    w.Sync();
    const i32 summed = p.normalise ? top_k : p.sigmoid ? 0 : experts;
    w.RowSums(
        n, summed,
        [&](i32 row, i32 k) { return m.logits[row * experts + (p.normalise ? pairs[row * top_k + k].expert : k)]; },
        [&](i32 row, float sum) { m.factor[row] = summed > 0 ? Divide(p.scale, sum) : p.scale; });
    w.Sync();
    w.Parallel(n * top_k, [&](i32 i) {
      const i32 row = i / top_k;
      pairs[i].weight = Multiply(m.logits[row * experts + pairs[i].expert], m.factor[row]);
    });
  }

  static EVT_FN float Score(const Params& p, float logit, float top) {
    if (p.sigmoid) return Divide(1.0f, Add(1.0f, Exp2(Multiply(-logit, kLog2E))));
    // Equal first: infinity - infinity is not 0.
    return logit == top ? 1.0f : Exp2(Multiply(Add(logit, -top), kLog2E));
  }

  // Slots of all pairs, and the table of tiles. alone: this task has chosen, and nobody else.
  template <class W>
  static EVT_FN void Group(W& w, const Task<Params>& t, Memory& m, i32 tokens, bool alone) {
    const Params& p = t.params();
    const i32 groups = CeilDiv(tokens, kTokens);
    i32* bases = alone || groups * p.experts <= kLogitsAtOnce ? m.bases : t.Operand<i32>(kBases);
    w.Sync();
    if (!alone) Count(w, t, m, groups, bases);
    w.Parallel(p.experts, [&](i32 expert) {
      m.slots[expert] = RoundUp(m.pairs_of[expert], 8);
      m.tiles[expert] = CeilDiv(m.pairs_of[expert], kExpertTileSlots);
    });
    ScanExclusive(w, m.slots, 2, kMaxExperts, p.experts, m.sums);
    const bool here = alone && tokens * p.top_k <= kPairsHere;
    const RoutedPair* pairs = here    ? m.pairs
                              : alone ? t.Operand<const RoutedPair>(kPairs)
                                      : t.Operand<const RoutedPair>(kAllPairs);
    i32* pair_slot = t.Operand<i32>(kPairSlot);
    i32* slot_token = t.Operand<i32>(kSlotToken);
    w.Fetch(
        tokens * p.top_k, [&](i32 i) { return pairs[i]; },
        [&](i32 i, const RoutedPair& pair) {
          const i32 token = i / p.top_k;
          i32 slot = m.slots[pair.expert] + pair.order;
          if (!alone) slot += bases[token / kTokens * p.experts + pair.expert];
          pair_slot[i] = slot;
          slot_token[slot] = token;
        });
    Compare(w, p, m);
    Tabulate(w, t, m);
  }

  // Adds the counts of groups of tokens: all of each expert, and those before each group.
  template <class W>
  static EVT_FN void Count(W& w, const Task<Params>& t, Memory& m, i32 groups, i32* bases) {
    constexpr i32 kAtOnce = 8;  // loads on their way
    const i32 experts = t.params().experts;
    const i32* counts = t.Operand<const i32>(kAllCounts);
    w.Parallel(experts, [&](i32 expert) {
      i32 sum = 0;
      EVT_ROLLED
      for (i32 first = 0; first < groups; first += kAtOnce) {
        i32 count[kAtOnce];
        for (i32 k = 0; k < kAtOnce; ++k) count[k] = first + k < groups ? counts[(first + k) * experts + expert] : 0;
        for (i32 k = 0; k < kAtOnce; ++k) {
          if (first + k < groups) bases[(first + k) * experts + expert] = sum;
          sum += count[k];
        }
      }
      m.pairs_of[expert] = sum;
    });
    w.Sync();
  }

  // What the expert linears' tasks would cost if each took so many row tiles, and how many those are: the choices.
  template <class W>
  static EVT_FN void Compare(W& w, const Params& p, Memory& m) {
    const i32 tiles = m.sums[1];
    const i32 wave = p.wave > 0 ? p.wave : static_cast<i32>(w.workers);
    w.Parallel(kExpertLinears * kChoices, [&](i32 i) {
      const i32 row_tiles = p.row_tiles[i / kChoices];
      // Tasks of quarters of a wave to four waves.
      const i32 split = Max((i % kChoices + 1) * wave / (4 * Max(tiles, 1)), 1);
      const i32 rows = CeilDiv(row_tiles, split);
      const i32 waves = CeilDiv(tiles * CeilDiv(row_tiles, rows), wave);
      // In halves of a row tile's time: a task's beginning and end are two row tiles, and the last task to end
      // may be half of one late.
      m.costs[i] = static_cast<u32>(waves * (2 * rows + 4) + rows) << 12 | static_cast<u32>(Min(rows, 4095));
    });
    w.Sync();
  }
  // Row tiles of the choice that costs least.
  static EVT_FN i32 Cheapest(const u32* costs) {
    u32 best = costs[0];
    for (i32 i = 1; i < kChoices; ++i) best = Min(best, costs[i]);
    return static_cast<i32>(best & 4095);
  }

  // Each expert's lines, and one behind them.
  template <class W>
  static EVT_FN void Tabulate(W& w, const Task<Params>& t, const Memory& m) {
    const Params& p = t.params();
    ExpertTile* table = t.Operand<ExpertTile>(kTiles);
    const i32 down = Cheapest(m.costs), up = Cheapest(m.costs + kChoices);
    w.Parallel(p.experts + 1, [&](i32 expert) {
      if (expert == p.experts) {
        table[m.sums[1]] = {0, m.sums[0] / 8, 0, {}};
        // What extents are made of is at least 1: a step without tokens has no tasks for another reason.
        t.Operand<i32>(kTileCount)[0] = Max(m.sums[1], 1);
        i32* splits = t.Operand<i32>(kSplits);
        splits[kExpertDown] = CeilDiv(p.row_tiles[kExpertDown], down);
        splits[kExpertUp] = CeilDiv(p.row_tiles[kExpertUp], up);
        return;
      }
      ExpertTile* lines = table + m.tiles[expert];
      EVT_ROLLED
      for (i32 first = 0; first < m.pairs_of[expert]; first += kExpertTileSlots) {
        *lines++ = {expert, (m.slots[expert] + first) / 8, Min(m.pairs_of[expert] - first, kExpertTileSlots),
                    {static_cast<u16>(down), static_cast<u16>(up)}};
      }
    });
  }
};

}  // namespace eventide
