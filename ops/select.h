// What top-k and top-p are decided by, without sorting: the weight of a prefix of the order (logit
// descending, id ascending) of one row of logits. Every sum follows a tree fixed by the vocabulary, so
// the result depends on neither threads nor batch.
//
// The head leaves the best of every 16 ids beside the logits. A tile whose best is outside of the prefix
// adds nothing, and adding zeros changes no bit: so a sum costs one look per tile and the logits of the
// tiles that the prefix reaches.
#pragma once

#include "device/base.h"
#include "ops/linear_epilogue.h"

namespace eventide {

// Unsigned integers in the order of floats; NaN lowest, -0 equal to +0.
EVT_FN u32 OrderKey(float f) {
  const u32 bits = FloatBits(Add(f, 0.0f));
  if (f != f) return 0;
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

inline constexpr i32 kVocabBits = 21;  // ids are below 2^21
inline constexpr i32 kNoId = (1 << kVocabBits) - 1;

// A value and an id as one number: the larger comes first in the order. A prefix of the order is all
// numbers from some least one on.
EVT_FN u64 OrderOf(float value, i32 id) {
  return u64{OrderKey(value)} << kVocabBits | static_cast<u32>(kNoId - id);
}
inline constexpr u64 kAllNumbers = u64{1} << kVocabBits;  // the least number of anything but NaN

using Best = BestLogit;  // of kBestIds neighbouring ids, or of all

// One row of logits.
struct LogitRow {
  const float* logits;  // readable (any values) up to a multiple of 32
  const Best* tiles;
  i32 vocab;
  float top;     // largest logit, a number
  float factor;  // log2(e) / temperature

  EVT_FN i32 Tiles() const { return CeilDiv(vocab, kBestIds); }
  EVT_FN bool Reaches(u64 least, i32 tile) const {
    return OrderOf(tiles[tile].value, tiles[tile].id) >= least;
  }
  EVT_FN bool Keeps(u64 least, i32 id) const {
    return (id < vocab) & (OrderOf(logits[id], id) >= least);  // no branch: few can be nested without spills
  }
  EVT_FN float Scaled(float logit) const {
    // Equal first: infinity - infinity is not 0.
    return logit == top ? 0.0f : Multiply(Add(logit, -top), factor);
  }
};

inline constexpr i32 kSelectItems = 256;  // virtual threads: item j owns tiles j, j + 256, ...
inline constexpr i32 kSelectLanes = 8;    // sums of an item: lane l owns ids l, l + 8, ... of a tile
inline constexpr i32 kSelectGroups = 16;
// Floats of memory that SumAbove needs.
inline constexpr i32 kSelectMemory = kSelectItems + kSelectGroups;

// The weight of what comes at or before `least`; known to all threads. An id weighs 1 if `counting`, else
// its probability up to a factor.
template <class W>
EVT_FN float SumAbove(W& w, const LogitRow& row, u64 least, bool counting, float* memory) {
  w.Parallel(kSelectItems, [&](i32 item) {
    float sum[kSelectLanes];
    for (i32 l = 0; l < kSelectLanes; ++l) sum[l] = 0.0f;
    EVT_ROLLED
    for (i32 tile = item; tile < row.Tiles(); tile += kSelectItems) {
      if (!row.Reaches(least, tile)) continue;
      EVT_ROLLED
      for (i32 first = tile * kBestIds; first < (tile + 1) * kBestIds; first += kSelectLanes) {
        for (i32 l = 0; l < kSelectLanes; ++l) {
          const float weight = counting ? 1.0f : Exp2(row.Scaled(row.logits[first + l]));
          sum[l] = Add(sum[l], row.Keeps(least, first + l) ? weight : 0.0f);
        }
      }
    }
    for (i32 half = kSelectLanes / 2; half > 0; half /= 2) {
      for (i32 l = 0; l < half; ++l) sum[l] = Add(sum[l], sum[l + half]);
    }
    memory[item] = sum[0];
  });
  w.Sync();
  constexpr i32 kEach = kSelectItems / kSelectGroups;
  w.Parallel(kSelectGroups, [&](i32 i) {
    float sum = 0.0f;
    EVT_ROLLED
    for (i32 k = 0; k < kEach; ++k) sum = Add(sum, memory[i * kEach + k]);
    memory[kSelectItems + i] = sum;
  });
  w.Sync();
  float sum = 0.0f;
  EVT_ROLLED
  for (i32 i = 0; i < kSelectGroups; ++i) sum = Add(sum, memory[kSelectItems + i]);
  w.Sync();
  return sum;
}

// The better of two: first in the order.
EVT_FN bool Better(const Best& a, const Best& b) {
  return OrderOf(a.value, a.id) > OrderOf(b.value, b.id);
}

// The best of value(i), i < n; known to all threads. Any tree gives the same. kTogether: so many of a thread's values are
// asked for before the first is looked at (they may be a trip to memory away).
template <i32 kTogether = 1, class W, class Value>
EVT_FN Best Largest(W& w, float* memory, i32 n, const Value& value) {
  Best* found = reinterpret_cast<Best*>(memory);
  w.Parallel(kSelectItems, [&](i32 item) {
    Best best{BitsFloat(0x7fc00000u), kNoId};
    EVT_ROLLED
    for (i32 i = item; i < n; i += kSelectItems * kTogether) {
      Best next[kTogether];
      for (i32 k = 0; k < kTogether; ++k) next[k] = value(Min(i + k * kSelectItems, n - 1));  // the last one again
      for (i32 k = 0; k < kTogether; ++k) {
        if (Better(next[k], best)) best = next[k];
      }
    }
    found[item] = best;
  });
  w.Sync();
  EVT_ROLLED
  for (i32 stride = kSelectItems / 2; stride > 0; stride /= 2) {
    w.Parallel(stride, [&](i32 i) {
      if (Better(found[i + stride], found[i])) found[i] = found[i + stride];
    });
    w.Sync();
  }
  const Best best = found[0];
  w.Sync();
  return best;
}
inline constexpr i32 kLargestMemory = 2 * kSelectItems;  // floats

}  // namespace eventide
