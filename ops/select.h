// Exact top-k and top-p over one row of logits, without sorting: a cut in the order (logit
// descending, id ascending) is found bit by bit from sums of weights above candidate cuts. Every
// sum follows a tree fixed by the vocabulary, so the result depends on neither threads nor batch.
#pragma once

#include "device/base.h"

namespace eventide {

// Unsigned integers in the order of floats; NaN lowest, -0 equal to +0.
EVT_FN u32 OrderKey(float f) {
  const u32 bits = FloatBits(Add(f, 0.0f));
  if (f != f) return 0;
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// A key and an id as one number: the larger comes first in the order.
EVT_FN u64 OrderOf(u32 key, i32 id) { return u64{key} << 32 | ~static_cast<u32>(id); }

// A prefix of the order: everything above `key`, and at `key` the ids below `id`.
struct Cut {
  u32 key;
  i32 id;
  EVT_FN bool Keeps(u64 other) const { return other > OrderOf(key, id); }
};
EVT_FN Cut KeepAll() {
  return {0, 0x7fffffff};
}

// One row's logits and what is being summed over them.
struct LogitRow {
  const float* logits;  // readable (any values) up to a multiple of 32
  i32 vocab;
  float top;     // largest logit, a number
  float factor;  // log2(e) / temperature

  EVT_FN float Scaled(float logit) const {
    // Equal first: infinity - infinity is not 0.
    return logit == top ? 0.0f : Multiply(Add(logit, -top), factor);
  }
};

inline constexpr i32 kSelectItems = 256;  // virtual threads: item j owns blocks j, j + 256, ... of
inline constexpr i32 kSelectBlock = 8;    // so many neighbouring ids
inline constexpr i32 kSelectCuts = 3;     // candidates of one pass: 2 bits of the cut
// Floats of memory that SumAbove needs.
inline constexpr i32 kSelectMemory = kSelectCuts * (kSelectItems + 16 + 1);

// Candidate i of a pass: base + (i + 1) << shift, of the cut's key or, at a known key, of its id.
struct CutSearch {
  u32 key;
  i32 id;
  i32 shift;
  bool by_id;
  EVT_FN Cut Candidate(i32 i) const {
    const u32 step = static_cast<u32>(i + 1);
    if (by_id) return {key, id + static_cast<i32>(step << shift)};
    const u64 wide = u64{key} + (u64{step} << shift);
    return {wide > 0xffffffffull ? 0xffffffffu : static_cast<u32>(wide), 0x7fffffff};
  }
};

// sums[i], i < kSelectCuts, readable by all threads afterwards: the weight of all that candidate i
// keeps among what `within` keeps. weight 1 if `counting`, else the probability up to a factor.
template <class W>
EVT_FN const float* SumAbove(W& w, const LogitRow& row, const Cut& within, const CutSearch& search,
                             bool counting, float* memory) {
  float* part = memory + kSelectCuts * kSelectItems;
  float* sums = part + kSelectCuts * 16;
  Cut cut[kSelectCuts];
  for (i32 c = 0; c < kSelectCuts; ++c) cut[c] = search.Candidate(c);
  w.Sync();
  w.Parallel(kSelectItems, [&](i32 item) {
    if (item * kSelectBlock >= row.vocab) {  // small vocabularies: nothing to sum
      for (i32 c = 0; c < kSelectCuts; ++c) memory[c * kSelectItems + item] = 0.0f;
      return;
    }
    float sum[kSelectCuts][kSelectBlock];
    for (i32 c = 0; c < kSelectCuts; ++c) {
      for (i32 l = 0; l < kSelectBlock; ++l) sum[c][l] = 0.0f;
    }
    EVT_ROLLED
    for (i32 first = item * kSelectBlock; first < row.vocab; first += kSelectItems * kSelectBlock) {
      for (i32 l = 0; l < kSelectBlock; ++l) {
        const float logit = row.logits[first + l];
        const u32 key = OrderKey(logit);
        const u64 order = OrderOf(key, first + l);
        const bool valid = first + l < row.vocab && within.Keeps(order);
        const float weight = counting ? 1.0f : (key == 0 ? 0.0f : Exp2(row.Scaled(logit)));
        for (i32 c = 0; c < kSelectCuts; ++c) {
          sum[c][l] = Add(sum[c][l], valid && cut[c].Keeps(order) ? weight : 0.0f);
        }
      }
    }
    for (i32 c = 0; c < kSelectCuts; ++c) {
      for (i32 l = 0; l < 4; ++l) sum[c][l] = Add(sum[c][l], sum[c][l + 4]);
      for (i32 l = 0; l < 2; ++l) sum[c][l] = Add(sum[c][l], sum[c][l + 2]);
      memory[c * kSelectItems + item] = Add(sum[c][0], sum[c][1]);
    }
  });
  w.Sync();
  w.Parallel(kSelectCuts * 16, [&](i32 i) {
    float sum = 0.0f;
    EVT_ROLLED
    for (i32 k = 0; k < kSelectItems / 16; ++k) sum = Add(sum, memory[i * (kSelectItems / 16) + k]);
    part[i] = sum;
  });
  w.Sync();
  w.Parallel(kSelectCuts, [&](i32 c) {
    float sum = 0.0f;
    EVT_ROLLED
    for (i32 k = 0; k < 16; ++k) sum = Add(sum, part[c * 16 + k]);
    sums[c] = sum;
  });
  w.Sync();
  return sums;
}

// What one call of FindCut looks for: the shortest prefix within `within` whose count reaches
// `goal`, or whose share of the total probability does. At least one id.
struct CutGoal {
  Cut within;
  bool counting;
  float goal;  // a count, or a share
};

// Passes: the total (shares only); 16 of 2 bits of the key, from the top; how many ids have that
// key; if several, 11 of 2 bits of the id. More bits a pass would keep more sums in registers.
template <class W>
EVT_FN Cut FindCut(W& w, const LogitRow& row, const CutGoal& want, float* memory) {
  enum : i32 { kTotal = 0, kKeys = 1, kTies = 17, kIds = 18, kEnd = 29 };
  u32 key = 0;
  i32 id = 0;
  float goal = want.goal;
  EVT_ROLLED
  for (i32 pass = want.counting ? kKeys : kTotal; pass < kEnd; ++pass) {
    CutSearch search{key, id, 0, false};
    if (pass == kTotal)
      search = {0, 0, 0, true};  // the last candidate keeps every key above 0: all numbers
    if (pass >= kKeys && pass < kTies) search.shift = 30 - 2 * (pass - kKeys);
    if (pass == kTies) search = {key - 1, 0, 0, false};  // candidates: at or above key, above key
    if (pass >= kIds) search = {key, id, 20 - 2 * (pass - kIds), true};
    const bool counting = want.counting || pass == kTies;
    const float* sums = SumAbove(w, row, want.within, search, counting, memory);
    if (pass == kTotal) {
      goal = Multiply(sums[kSelectCuts - 1], want.goal);
    } else if (pass < kTies) {
      u32 chosen = key;
      for (i32 c = 0; c < kSelectCuts; ++c) {
        if (sums[c] >= goal && sums[c] > 0.0f) chosen = search.Candidate(c).key;
      }
      key = chosen;
    } else if (pass == kTies) {
      if (sums[0] - sums[1] <= 1.0f) return {key, 0x7fffffff};
    } else {
      i32 chosen = id;
      for (i32 c = 0; c < kSelectCuts; ++c) {
        if (!(sums[c] >= goal && sums[c] > 0.0f)) chosen = search.Candidate(c).id;
      }
      id = chosen;
    }
  }
  return {key, id + 1};
}

}  // namespace eventide
