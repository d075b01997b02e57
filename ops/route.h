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
    if (!p.groups || tokens <= kTokens) {
      const i32 first = p.groups ? 0 : t.at.at[0] * kTokens;
      Choose(w, t, first, Min(tokens - first, kTokens));
    }
    if (p.groups) Group(w, t, tokens);
  }

 private:
  static constexpr i32 kKeys = 3072;  // logits in memory at once
  static constexpr float kLog2E = 1.4426950408889634f;
  static_assert(kKeys >= kMaxExperts);
  static_assert((kKeys + 2 * kTokens) * 4 <= static_cast<i32>(kScratchBytes), "Choose");
  static constexpr i32 kChoices = 16;  // of row tiles for a task that are compared
  static_assert((3 * kMaxExperts + 2 + kExpertLinears * kChoices) * 4 <= static_cast<i32>(kScratchBytes), "Group");

  // Chooses for tokens [first, first + count), a group of 8, as many at a time as fit.
  template <class W>
  static EVT_FN void Choose(W& w, const Task<Params>& t, i32 first, i32 count) {
    const Params& p = t.params();
    const i32 most = Min(kKeys / p.experts, kTokens);
    EVT_ROLLED
    for (i32 done = 0; done < count; done += most) {
      const i32 n = Min(most, count - done);
      Rank(w, t, first + done, n);
      Weigh(w, t, first + done, n);
    }
    w.Sync();
    RoutedPair* pairs = t.Operand<RoutedPair>(kPairs) + static_cast<i64>(first) * p.top_k;
    i32* counts = t.Operand<i32>(kCounts) + static_cast<i64>(first / kTokens) * p.experts;
    w.Parallel(p.experts, [&](i32 expert) {
      i32 order = 0;
      EVT_ROLLED
      for (i32 i = 0; i < count * p.top_k; ++i) {
        if (pairs[i].expert == expert) pairs[i].order = order++;
      }
      counts[expert] = order;
    });
  }

  static EVT_FN const float* LogitsOf(const Task<Params>& t, i32 token) {
    return t.Operand<const float>(kLogits) + static_cast<i64>(token) * t.params().logits_stride;
  }

  // The expert of every rank, and each token's best logit in memory[kKeys ...]. An expert's rank is
  // the number of those before it: no step depends on the one before.
  template <class W>
  static EVT_FN void Rank(W& w, const Task<Params>& t, i32 first, i32 n) {
    const Params& p = t.params();
    const i32 experts = p.experts;
    u32* keys = reinterpret_cast<u32*>(w.Scratch());
    float* top = reinterpret_cast<float*>(w.Scratch()) + kKeys;
    RoutedPair* pairs = t.Operand<RoutedPair>(kPairs);
    const i32* drawn = t.Operand<const i32>(kDrawn);
    w.Sync();
    w.Parallel(n * experts,
               [&](i32 i) { keys[i] = OrderKey(LogitsOf(t, first + i / experts)[i % experts]); });
    w.Sync();
    w.Parallel(n * experts, [&](i32 i) {
      const i32 token = first + i / experts, expert = i % experts;
      const u32* row = keys + i / experts * experts;
      const u32 key = row[expert];
      i32 rank = 0;
      for (i32 e = 0; e < experts; ++e) {
        // Those before it win ties. No key is so large that adding 1 overflows.
        rank += row[e] + (e < expert ? 1u : 0u) > key ? 1 : 0;
      }
      if (rank == 0) top[i / experts] = LogitsOf(t, token)[expert];
      if (rank >= p.top_k) return;
      i32 chosen = expert;
      if (p.draws > 0) {
        const u64 line = t.step.header->step * kDrawsOfStep + static_cast<u32>(token);
        const i32 other = drawn[static_cast<i64>(line % static_cast<u32>(p.draws)) * p.top_k + rank];
        if (other >= 0) chosen = other;
      }
      RoutedPair& pair = pairs[static_cast<i64>(token) * p.top_k + rank];
      pair.expert = Min(chosen, experts - 1);
      pair.spare = 0;
    });
  }

  static EVT_FN float Score(const Params& p, float logit, float top) {
    if (p.sigmoid) return Divide(1.0f, Add(1.0f, Exp2(Multiply(-logit, kLog2E))));
    // Equal first: infinity - infinity is not 0.
    return logit == top ? 1.0f : Exp2(Multiply(Add(logit, -top), kLog2E));
  }

  template <class W>
  static EVT_FN void Weigh(W& w, const Task<Params>& t, i32 first, i32 n) {
    const Params& p = t.params();
    const float* top = reinterpret_cast<const float*>(w.Scratch()) + kKeys;
    float* factor = reinterpret_cast<float*>(w.Scratch()) + kKeys + kTokens;
    RoutedPair* pairs = t.Operand<RoutedPair>(kPairs) + static_cast<i64>(first) * p.top_k;
    w.Sync();
    const i32 summed = p.normalise ? p.top_k : p.sigmoid ? 0 : p.experts;
    w.RowSums(
        n, summed,
        [&](i32 i, i32 k) {
          const i32 expert = p.normalise ? pairs[i * p.top_k + k].expert : k;
          return Score(p, LogitsOf(t, first + i)[expert], top[i]);
        },
        [&](i32 i, float sum) { factor[i] = summed > 0 ? Divide(p.scale, sum) : p.scale; });
    w.Sync();
    w.Parallel(n * p.top_k, [&](i32 i) {
      const i32 token = i / p.top_k;
      const float score = Score(p, LogitsOf(t, first + token)[pairs[i].expert], top[token]);
      pairs[i].weight = Multiply(score, factor[token]);
    });
  }

  // Slots of all pairs, and the table of tiles.
  template <class W>
  static EVT_FN void Group(W& w, const Task<Params>& t, i32 tokens) {
    const Params& p = t.params();
    i32* slots = reinterpret_cast<i32*>(w.Scratch());  // of each expert, then those before it
    i32* tiles = slots + kMaxExperts;                  // likewise
    i32* pairs_of = slots + 2 * kMaxExperts;
    i32* sums = slots + 3 * kMaxExperts;
    const i32 groups = CeilDiv(tokens, kTokens);
    const i32* counts = t.Operand<const i32>(kAllCounts);
    i32* bases = t.Operand<i32>(kBases);
    w.Sync();
    w.Parallel(p.experts, [&](i32 expert) {
      i32 sum = 0;
      for (i32 g = 0; g < groups; ++g) {
        const i64 at = static_cast<i64>(g) * p.experts + expert;
        bases[at] = sum;
        sum += counts[at];
      }
      pairs_of[expert] = sum;
      slots[expert] = RoundUp(sum, 8);
      tiles[expert] = CeilDiv(sum, kExpertTileSlots);
    });
    ScanExclusive(w, slots, 2, kMaxExperts, p.experts, sums);
    const RoutedPair* pairs = t.Operand<const RoutedPair>(kAllPairs);
    i32* pair_slot = t.Operand<i32>(kPairSlot);
    i32* slot_token = t.Operand<i32>(kSlotToken);
    w.Parallel(tokens * p.top_k, [&](i32 i) {
      const i32 token = i / p.top_k, expert = pairs[i].expert;
      const i32 slot = slots[expert] + pairs[i].order +
                       bases[static_cast<i64>(token / kTokens) * p.experts + expert];
      pair_slot[i] = slot;
      slot_token[slot] = token;
    });
    u32* costs = reinterpret_cast<u32*>(sums + 2);
    Compare(w, p, sums[1], costs);
    Tabulate(w, t, {slots, tiles, pairs_of, sums[0], sums[1], costs});
  }

  // What the expert linears' tasks would cost if each took so many row tiles, and how many those are: the choices.
  template <class W>
  static EVT_FN void Compare(W& w, const Params& p, i32 tiles, u32* costs) {
    const i32 wave = p.wave > 0 ? p.wave : static_cast<i32>(w.workers);
    w.Parallel(kExpertLinears * kChoices, [&](i32 i) {
      const i32 row_tiles = p.row_tiles[i / kChoices];
      // Tasks of quarters of a wave to four waves.
      const i32 split = Max((i % kChoices + 1) * wave / (4 * Max(tiles, 1)), 1);
      const i32 rows = CeilDiv(row_tiles, split);
      const i32 waves = CeilDiv(tiles * CeilDiv(row_tiles, rows), wave);
      // In halves of a row tile's time: a task's beginning and end are one, and the last one to end
      // may be half a task late.
      costs[i] = static_cast<u32>(waves * (2 * rows + 2) + rows) << 12 | static_cast<u32>(Min(rows, 4095));
    });
    w.Sync();
  }
  // Row tiles of the choice that costs least.
  static EVT_FN i32 Cheapest(const u32* costs) {
    u32 best = costs[0];
    for (i32 i = 1; i < kChoices; ++i) best = Min(best, costs[i]);
    return static_cast<i32>(best & 4095);
  }

  struct Grouping {
    const i32 *slots, *tiles, *pairs;  // by expert: first slot, first tile, pairs
    i32 all_slots, all_tiles;
    const u32* costs;  // of each expert linear's choices
  };

  template <class W>
  static EVT_FN void Tabulate(W& w, const Task<Params>& t, const Grouping& g) {
    const Params& p = t.params();
    ExpertTile* table = t.Operand<ExpertTile>(kTiles);
    const i32 down = Cheapest(g.costs), up = Cheapest(g.costs + kChoices);
    w.Parallel(g.all_tiles + 1, [&](i32 i) {
      if (i == g.all_tiles) {
        table[i] = {0, g.all_slots / 8, 0, {}};
        return;
      }
      const i32 expert = FindSpan(g.tiles, p.experts, i);
      const i32 first = (i - g.tiles[expert]) * kExpertTileSlots;
      table[i] = {expert, (g.slots[expert] + first) / 8,
                  Min(g.pairs[expert] - first, kExpertTileSlots),
                  {static_cast<u16>(down), static_cast<u16>(up)}};
    });
    // What extents are made of is at least 1: a step without tokens has no tasks for another reason.
    w.Parallel(1, [&](i32) {
      t.Operand<i32>(kTileCount)[0] = Max(g.all_tiles, 1);
      i32* splits = t.Operand<i32>(kSplits);
      splits[kExpertDown] = CeilDiv(p.row_tiles[kExpertDown], down);
      splits[kExpertUp] = CeilDiv(p.row_tiles[kExpertUp], up);
    });
  }
};

}  // namespace eventide
