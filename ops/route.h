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

  // Code is short here rather than fast: it runs once a layer, and its instructions come from the second-level cache
  // each time, which takes longer than they do.
  template <class T, class W>
  static EVT_FN void Compute(W& w, const Task<Params>& t) {
    const Params& p = t.params();
    const i32 tokens =
        p.count_index < 0 ? t.Dim(p.tokens) : t.Operand<const i32>(kCount)[p.count_index];
    Memory& m = *reinterpret_cast<Memory*>(w.Scratch());
    if (p.groups && tokens > kTokens) {
      Group(w, t, m, tokens);
      return;
    }
    Choose(w, t, m, tokens);
  }

 private:
  static constexpr i32 kLogitsAtOnce = 2048;
  static constexpr i32 kPairsHere = 128;  // of a task that chooses, that fit; others lie in the tensor at once
  static constexpr i32 kChoices = 16;     // of row tiles for a task that are compared
  static constexpr i32 kCosts = kExpertLinears * kChoices;
  static constexpr float kLog2E = 1.4426950408889634f;
  static_assert(kLogitsAtOnce >= kMaxExperts);

  // What the task's threads share: memory of the step is a trip to the L2 away each time.
  struct alignas(16) Memory {
    u32 costs[kCosts];
    i32 sums[2];  // slots and tiles
    float top[kTokens], factor[kTokens];
    union {
      struct {
        RoutedPair pairs[kPairsHere];
        float logits[kLogitsAtOnce];
      };
      struct {
        i32 slots[kMaxExperts];  // of each expert, then those before it
        i32 tiles[kMaxExperts];  // likewise
        i32 pairs_of[kMaxExperts];
        i32 bases[kLogitsAtOnce];  // kBases, if they fit
      };
    };
  };
  static_assert(sizeof(Memory) <= kScratchBytes, "Route");

  // Chooses for the 8 tokens of the task, as many at a time as fit. In pairs, `spare` becomes the number of pairs of
  // the first one's expert, and 0 in those after it.
  template <class W>
  static EVT_FN void Choose(W& w, const Task<Params>& t, Memory& m, i32 tokens) {
    const Params& p = t.params();
    const i32 first = p.groups ? 0 : t.at.at[0] * kTokens;
    const i32 count = Min(tokens - first, kTokens), all = count * p.top_k;
    RoutedPair* out = t.Operand<RoutedPair>(kPairs) + static_cast<i64>(first) * p.top_k;
    RoutedPair* pairs = all <= kPairsHere ? m.pairs : out;
    i32* counts = t.Operand<i32>(kCounts) + static_cast<i64>(first / kTokens) * p.experts;
    if (!p.groups) w.Parallel(p.experts, [&](i32 expert) { counts[expert] = 0; });
    const i32 most = Min(kLogitsAtOnce / p.experts, kTokens);
    EVT_ROLLED
    for (i32 done = 0; done < count; done += most) {
      ChooseSome(w, t, m, first, done, Min(most, count - done), pairs + done * p.top_k);
    }
    w.Parallel(all, [&](i32 i) {
      const i32 expert = pairs[i].expert;
      i32 before = 0, same = 0;
      EVT_ROLLED
      for (i32 k = 0; k < all; ++k) {
        const i32 one = pairs[k].expert == expert ? 1 : 0;
        same += one;
        before += k < i ? one : 0;
      }
      pairs[i].order = before;
      pairs[i].spare = before == 0 ? same : 0;
    });
    w.Sync();
    if (p.groups) {
      Alone(w, t, m, all, pairs, out);
      return;
    }
    w.Parallel(all, [&](i32 i) {
      const RoutedPair pair = pairs[i];
      if (pair.spare > 0) counts[pair.expert] = pair.spare;
      out[i] = {pair.expert, pair.order, Weight(p, m, pair, i), 0};
    });
  }

  static EVT_FN float Weight(const Params& p, const Memory& m, const RoutedPair& pair, i32 i) {
    return Multiply(pair.weight, m.factor[static_cast<u32>(i) / static_cast<u32>(p.top_k)]);
  }

  // The experts of n tokens, their scores as weights, and what to multiply these by.
  template <class W>
  static EVT_FN void ChooseSome(W& w, const Task<Params>& t, Memory& m, i32 first, i32 done, i32 n,
                                RoutedPair* pairs) {
    const Params& p = t.params();
    const i32 experts = p.experts, top_k = p.top_k;
    const i32 token = first + done;
    w.Sync();
    w.Bring(m.logits, n, experts, [&](i32 row) {
      return t.Operand<const float>(kLogits) + static_cast<i64>(token + row) * p.logits_stride;
    });
    if (p.draws > 0) {
      const i32* drawn = t.Operand<const i32>(kDrawn);
      const u32 line = static_cast<u32>(t.step.header->step) * kDrawsOfStep + static_cast<u32>(token);
      w.Parallel(n * top_k, [&](i32 i) {
        const u32 row = static_cast<u32>(i) / static_cast<u32>(top_k), rank = static_cast<u32>(i) - row * top_k;
        pairs[i].spare = drawn[(line + row) % static_cast<u32>(p.draws) * static_cast<u32>(top_k) + rank];
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
    // Of all experts only where their sum is needed.
    const bool every = !p.normalise && !p.sigmoid;
    const i32 each = every ? experts : top_k;
    w.Parallel(n * each, [&](i32 i) {
      const i32 row = static_cast<i32>(static_cast<u32>(i) / static_cast<u32>(each));
      float& to = every ? m.logits[i] : pairs[i].weight;
      to = Score(p, m.logits[every ? i : row * experts + pairs[i].expert], m.top[row]);
    });
    w.Sync();
    const float* scores = every ? m.logits : &pairs->weight;
    const i32 apart = every ? 1 : static_cast<i32>(sizeof(RoutedPair) / sizeof(float));
    const i32 summed = p.sigmoid && !p.normalise ? 0 : each;
    w.RowSums(
        n, summed, [&](i32 row, i32 k) { return scores[(row * each + k) * apart]; },
        [&](i32 row, float sum) { m.factor[done + row] = summed > 0 ? Divide(p.scale, sum) : p.scale; });
    if (!every) return;
    w.Parallel(n * top_k, [&](i32 i) { pairs[i].weight = m.logits[i / top_k * experts + pairs[i].expert]; });
  }

  static EVT_FN float Score(const Params& p, float logit, float top) {
    if (p.sigmoid) return Divide(1.0f, Add(1.0f, Exp2(Multiply(-logit, kLog2E))));
    // Equal first: infinity - infinity is not 0.
    return logit == top ? 1.0f : Exp2(Multiply(Add(logit, -top), kLog2E));
  }

  // Slots of all pairs and the table of tiles, of a task that has chosen for all of the step's tokens: each pair
  // looks through the others.
  template <class W>
  static EVT_FN void Alone(W& w, const Task<Params>& t, Memory& m, i32 all, RoutedPair* pairs, RoutedPair* out) {
    const Params& p = t.params();
    w.Parallel(Max(all, kCosts), [&](i32 i) {
      const RoutedPair pair = pairs[Min(i, Max(all, 1) - 1)];
      i32 groups = 0, tiles = 0, groups_before = 0, tiles_before = 0;
      EVT_ROLLED
      for (i32 k = 0; k < all; ++k) {
        const i32 more_groups = (pairs[k].spare + 7) / 8;
        const i32 more_tiles = (pairs[k].spare + kExpertTileSlots - 1) / kExpertTileSlots;
        const bool before = pairs[k].expert < pair.expert;
        groups += more_groups;
        tiles += more_tiles;
        groups_before += before ? more_groups : 0;
        tiles_before += before ? more_tiles : 0;
      }
      if (i < kCosts) m.costs[i] = Cost(p, tiles, static_cast<i32>(t.step.header->workers), i);
      if (i == 0) {
        m.sums[0] = groups;
        m.sums[1] = tiles;
      }
      if (i >= all) return;
      const i32 slot = groups_before * 8 + pair.order;
      t.Operand<i32>(kPairSlot)[i] = slot;
      t.Operand<i32>(kSlotToken)[slot] = static_cast<i32>(static_cast<u32>(i) / static_cast<u32>(p.top_k));
      out[i].weight = Weight(p, m, pair, i);
      out[i].expert = pair.expert;
      pairs[i].order = tiles_before << 16 | groups_before;  // where the expert's lines are, if it is its first
    });
    w.Sync();
    Lines lines(p, t, m);
    w.Parallel(Max(all, 1), [&](i32 i) {
      if (i == 0) lines.End(p, t, m.sums[0], m.sums[1]);
      if (i < all) lines.Write(pairs[i].order >> 16, pairs[i].expert, pairs[i].order & 0xffff, pairs[i].spare);
    });
  }

  // Slots of all pairs, and the table of tiles, of what several tasks have chosen.
  template <class W>
  static EVT_FN void Group(W& w, const Task<Params>& t, Memory& m, i32 tokens) {
    const Params& p = t.params();
    const i32 groups = CeilDiv(tokens, kTokens);
    i32* bases = groups * p.experts <= kLogitsAtOnce ? m.bases : t.Operand<i32>(kBases);
    Count(w, t, m, groups, bases);
    ScanExclusive(w, m.slots, 2, kMaxExperts, p.experts, m.sums);
    w.Parallel(kCosts, [&](i32 i) { m.costs[i] = Cost(p, m.sums[1], static_cast<i32>(t.step.header->workers), i); });
    const RoutedPair* pairs = t.Operand<const RoutedPair>(kAllPairs);
    i32* pair_slot = t.Operand<i32>(kPairSlot);
    i32* slot_token = t.Operand<i32>(kSlotToken);
    w.Fetch(
        tokens * p.top_k, [&](i32 i) { return pairs[i]; },
        [&](i32 i, const RoutedPair& pair) {
          const i32 token = static_cast<i32>(static_cast<u32>(i) / static_cast<u32>(p.top_k));
          const i32 slot = m.slots[pair.expert] + pair.order + bases[token / kTokens * p.experts + pair.expert];
          pair_slot[i] = slot;
          slot_token[slot] = token;
        });
    w.Sync();
    Lines lines(p, t, m);
    w.Parallel(p.experts, [&](i32 expert) {
      if (expert == 0) lines.End(p, t, m.sums[0] / 8, m.sums[1]);
      lines.Write(m.tiles[expert], expert, m.slots[expert] / 8, m.pairs_of[expert]);
    });
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
        for (i32 k = 0; k < kAtOnce; ++k) count[k] = counts[Min(first + k, groups - 1) * experts + expert];
        for (i32 k = 0; k < kAtOnce; ++k) {
          if (first + k >= groups) continue;
          bases[(first + k) * experts + expert] = sum;
          sum += count[k];
        }
      }
      m.pairs_of[expert] = sum;
      m.slots[expert] = RoundUp(sum, 8);
      m.tiles[expert] = CeilDiv(sum, kExpertTileSlots);
    });
  }

  // What the tasks of an expert linear would cost if each took so many row tiles, and how many those are: of choice i.
  static EVT_FN u32 Cost(const Params& p, i32 tiles, i32 workers, i32 i) {
    const u32 wave = static_cast<u32>(p.wave > 0 ? p.wave : workers);
    const u32 row_tiles = static_cast<u32>(p.row_tiles[i / kChoices]);
    const u32 some = static_cast<u32>(Max(tiles, 1));
    // Tasks of quarters of a wave to four waves.
    const u32 split = Max((static_cast<u32>(i % kChoices) + 1) * wave / (4 * some), 1u);
    const u32 rows = (row_tiles + split - 1) / split;
    const u32 waves = (some * ((row_tiles + rows - 1) / rows) + wave - 1) / wave;
    // In halves of a row tile's time: a task's beginning and end are two row tiles, and the last task to end
    // may be half of one late.
    return (waves * (2 * rows + 4) + rows) << 12 | Min(rows, 4095u);
  }

  // The table of tiles.
  struct Lines {
    ExpertTile* table;
    u16 rows[kExpertLinears];  // row tiles of the choices that cost least

    EVT_FN Lines(const Params&, const Task<Params>& t, const Memory& m) : table(t.Operand<ExpertTile>(kTiles)) {
      for (i32 linear = 0; linear < kExpertLinears; ++linear) {
        u32 best = m.costs[linear * kChoices];
        for (i32 i = 1; i < kChoices; ++i) best = Min(best, m.costs[linear * kChoices + i]);
        rows[linear] = static_cast<u16>(best & 4095);
      }
    }
    // An expert's, from line `at` on.
    EVT_FN void Write(i32 at, i32 expert, i32 group, i32 pairs) const {
      EVT_ROLLED
      for (i32 first = 0; first < pairs; first += kExpertTileSlots) {
        table[at++] = {expert, group + first / 8, Min(pairs - first, kExpertTileSlots), {rows[0], rows[1]}};
      }
    }
    // What stands behind all lines, and how many there are. Extents are made of these, and at least 1: a step without
    // tokens has no tasks for another reason.
    EVT_FN void End(const Params& p, const Task<Params>& t, i32 groups, i32 tiles) const {
      table[tiles] = {0, groups, 0, {}};
      t.Operand<i32>(kTileCount)[0] = Max(tiles, 1);
      for (i32 linear = 0; linear < kExpertLinears; ++linear) {
        t.Operand<i32>(kSplits)[linear] = CeilDiv(p.row_tiles[linear], static_cast<i32>(rows[linear]));
      }
    }
  };
};

}  // namespace eventide
