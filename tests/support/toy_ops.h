// Ops without arithmetic of interest: each mixes a checksum of what it reads into what it writes,
// so that a read that came too early, or of the wrong element, changes the result. For graphs that
// test the runtime, not numbers. All tensors are i32; every op has its work in Compute, done by one
// thread of the role.
#pragma once

#include "device/op.h"

namespace eventide {

// One multiplicative hash step; not commutative, so that order shows.
EVT_FN u32 MixBits(u32 sum, u32 value) {
  sum = (sum ^ value) * 0x9e3779b1u;
  return sum ^ (sum >> 15);
}

// The elements of an operand that a task touches: [at * per, at * per + per), at most `length`,
// where `at` is the task's coordinate; all of [0, length) when coord is -1.
struct ToySpan {
  i32 coord = -1;
  i32 per = 1;
  DimRef length = {-1, 1};

  template <class T>
  EVT_FN i32 Low(const T& task) const {
    return coord < 0 ? 0 : task.at.at[coord] * per;
  }
  template <class T>
  EVT_FN i32 High(const T& task) const {
    const i32 end = task.Dim(length);
    return coord < 0 ? end : Min(end, task.at.at[coord] * per + per);
  }
};

struct ToyParams {
  i32 seed = 0;
  ToySpan spans[4] = {};
};

// Reads kReads tensors and writes one, each along its span.
template <int kReads>
EVT_FN void ToyMix(const Task<ToyParams>& t) {
  u32 sum = static_cast<u32>(t.params().seed + t.at.layer);
  for (int r = 0; r < kReads; ++r) {
    const i32* x = t.Operand<const i32>(r);
    const ToySpan& span = t.params().spans[r];
    for (i32 i = span.Low(t); i < span.High(t); ++i) sum = MixBits(sum, static_cast<u32>(x[i]));
  }
  i32* y = t.Operand<i32>(kReads);
  const ToySpan& span = t.params().spans[kReads];
  for (i32 i = span.Low(t); i < span.High(t); ++i)
    y[i] = static_cast<i32>(MixBits(sum, static_cast<u32>(i)));
}

struct Mix0 {
  static constexpr OpInfo kInfo = {"mix0", 1, {Out("y")}};
  using Params = ToyParams;
  template <class W>
  static EVT_FN void Compute(W& w, const Task<Params>& t) {
    if (w.Leader()) ToyMix<0>(t);
  }
};
struct Mix1 {
  static constexpr OpInfo kInfo = {"mix1", 2, {In("x"), Out("y")}};
  using Params = ToyParams;
  template <class W>
  static EVT_FN void Compute(W& w, const Task<Params>& t) {
    if (w.Leader()) ToyMix<1>(t);
  }
};
struct Mix2 {
  static constexpr OpInfo kInfo = {"mix2", 3, {In("x0"), In("x1"), Out("y")}};
  using Params = ToyParams;
  template <class W>
  static EVT_FN void Compute(W& w, const Task<Params>& t) {
    if (w.Leader()) ToyMix<2>(t);
  }
};
struct Mix3 {
  static constexpr OpInfo kInfo = {"mix3", 4, {In("x0"), In("x1"), In("x2"), Out("y")}};
  using Params = ToyParams;
  template <class W>
  static EVT_FN void Compute(W& w, const Task<Params>& t) {
    if (w.Leader()) ToyMix<3>(t);
  }
};

// One value of `values` per task, in [min, max]: what a router or an acceptance decides, from data.
struct ToyChoose {
  static constexpr OpInfo kInfo = {"toy_choose", 2, {In("x"), Out("values")}};
  struct Params {
    i32 seed, per_task, min,
        max;  // per_task values of each task, all different where the range allows
  };
  template <class W>
  static EVT_FN void Compute(W& w, const Task<Params>& t) {
    if (!w.Leader()) return;
    const Params& p = t.params();
    const i32 at = t.at.at[0];
    const u32 hash =
        MixBits(static_cast<u32>(p.seed), static_cast<u32>(t.Operand<const i32>(0)[at]));
    for (i32 k = 0; k < p.per_task; ++k) {
      t.Operand<i32>(1)[at * p.per_task + k] =
          p.min +
          static_cast<i32>((hash + static_cast<u32>(k)) % static_cast<u32>(p.max - p.min + 1));
    }
  }
};

// From one value in [0, groups) per item (or, with `is_count`, a count per group): items grouped by
// value in tiles of `tile`, as every dispatch to experts, rows or blocks needs it.
//   counts[g]      tiles of group g            tile_ptr[g]   first tile of group g; [groups] is the
//   total tile_group[t]  group of tile t             total[0]      tiles in all order[...]     the
//   items of group 0, then of group 1, ... ; begin[t] the first of tile t in it
struct ToyDispatch {
  static constexpr OpInfo kInfo = {"toy_dispatch",
                                   8,
                                   {In("values"), Out("counts"), Out("tile_ptr"), Out("tile_group"),
                                    Out("total"), Out("order"), Out("begin"), Out("where")}};
  struct Params {
    DimRef items, groups;
    i32 tile;
    i32 is_count;  // 1: values[g] is the number of items of group g
  };
  template <class W>
  static EVT_FN void Compute(W& w, const Task<Params>& t) {
    if (!w.Leader()) return;
    const Params& p = t.params();
    const i32* values = t.Operand<const i32>(0);
    const i32 items = t.Dim(p.items), groups = t.Dim(p.groups);
    i32 tiles = 0, placed = 0;
    for (i32 g = 0; g < groups; ++g) {
      const i32 first_item = placed;
      if (p.is_count) {
        for (i32 i = 0; i < values[g]; ++i, ++placed)
          t.Operand<i32>(5)[placed] = t.Operand<i32>(7)[placed] = placed;
      } else {
        for (i32 i = 0; i < items; ++i) {
          if (values[i] != g) continue;
          t.Operand<i32>(7)[i] = placed;
          t.Operand<i32>(5)[placed++] = i;
        }
      }
      const i32 count = CeilDiv(placed - first_item, p.tile);
      t.Operand<i32>(1)[g] = count;
      t.Operand<i32>(2)[g] = tiles;
      for (i32 k = 0; k < count; ++k) {
        t.Operand<i32>(3)[tiles + k] = g;
        t.Operand<i32>(6)[tiles + k] = first_item + k * p.tile;
      }
      tiles += count;
    }
    t.Operand<i32>(2)[groups] = tiles;
    t.Operand<i32>(6)[tiles] = placed;
    t.Operand<i32>(4)[0] = tiles;
  }
};

// A tile of a dispatch: y[i] = mix(x[order[i] / fan], group) for its places i.
struct ToyTile {
  static constexpr OpInfo kInfo = {
      "toy_tile", 5, {In("x"), In("tile_group"), In("order"), In("begin"), Out("y")}};
  struct Params {
    i32 seed, fan, tile;
  };
  template <class W>
  static EVT_FN void Compute(W& w, const Task<Params>& t) {
    if (!w.Leader()) return;
    const Params& p = t.params();
    const i32 tile = t.at.at[0], group = t.Operand<const i32>(1)[tile];
    const i32* order = t.Operand<const i32>(2);
    const i32* begin = t.Operand<const i32>(3);
    // The last tile of a group ends where the next group's first begins.
    for (i32 i = begin[tile]; i < Min(begin[tile] + p.tile, begin[tile + 1]); ++i) {
      t.Operand<i32>(4)[i] =
          static_cast<i32>(MixBits(static_cast<u32>(p.seed + group),
                                   static_cast<u32>(t.Operand<const i32>(0)[order[i] / p.fan])));
    }
  }
};

// out[task] = mix of y[where[2 * task]] and y[where[2 * task + 1]].
struct ToyCombine {
  static constexpr OpInfo kInfo = {"toy_combine", 4, {In("y0"), In("y1"), In("where"), Out("out")}};
  struct Params {
    i32 seed;
  };
  template <class W>
  static EVT_FN void Compute(W& w, const Task<Params>& t) {
    if (!w.Leader()) return;
    const i32 at = t.at.at[0];
    u32 sum = static_cast<u32>(t.params().seed);
    for (int k = 0; k < 2; ++k) {
      const i32 place = t.Operand<const i32>(2)[at * 2 + k];
      sum = MixBits(sum, static_cast<u32>(t.Operand<const i32>(k)[place]));
    }
    t.Operand<i32>(3)[at] = static_cast<i32>(sum);
  }
};

// y[task] = mix of x[ptr[task]] ... x[ptr[task + 1] - 1].
struct ToyGatherRange {
  static constexpr OpInfo kInfo = {"toy_gather_range", 3, {In("x"), In("ptr"), Out("y")}};
  struct Params {
    i32 seed;
  };
  template <class W>
  static EVT_FN void Compute(W& w, const Task<Params>& t) {
    if (!w.Leader()) return;
    const i32 at = t.at.at[0];
    u32 sum = static_cast<u32>(t.params().seed);
    for (i32 i = t.Operand<const i32>(1)[at]; i < t.Operand<const i32>(1)[at + 1]; ++i)
      sum = MixBits(sum, static_cast<u32>(t.Operand<const i32>(0)[i]));
    t.Operand<i32>(2)[at] = static_cast<i32>(sum);
  }
};

// out[task] = mix of y[begin[tile_ptr[task]]] ... y[begin[tile_ptr[task + 1]] - 1]: all items of a
// group.
struct ToyGroupSum {
  static constexpr OpInfo kInfo = {
      "toy_group_sum", 4, {In("y"), In("begin"), In("tile_ptr"), Out("out")}};
  struct Params {
    i32 seed;
  };
  template <class W>
  static EVT_FN void Compute(W& w, const Task<Params>& t) {
    if (!w.Leader()) return;
    const i32 at = t.at.at[0];
    const i32* begin = t.Operand<const i32>(1);
    const i32* tile = t.Operand<const i32>(2);
    u32 sum = static_cast<u32>(t.params().seed);
    for (i32 i = begin[tile[at]]; i < begin[tile[at + 1]]; ++i)
      sum = MixBits(sum, static_cast<u32>(t.Operand<const i32>(0)[i]));
    t.Operand<i32>(3)[at] = static_cast<i32>(sum);
  }
};

// Pair p: y[p] = mix(q[first[p]], k[second[p]]).
struct ToyPair {
  static constexpr OpInfo kInfo = {
      "toy_pair", 5, {In("q"), In("k"), In("first"), In("second"), Out("y")}};
  struct Params {
    i32 seed;
  };
  template <class W>
  static EVT_FN void Compute(W& w, const Task<Params>& t) {
    if (!w.Leader()) return;
    const i32 at = t.at.at[0];
    const i32 q = t.Operand<const i32>(0)[t.Operand<const i32>(2)[at]];
    const i32 k = t.Operand<const i32>(1)[t.Operand<const i32>(3)[at]];
    t.Operand<i32>(4)[at] = static_cast<i32>(MixBits(
        MixBits(static_cast<u32>(t.params().seed), static_cast<u32>(q)), static_cast<u32>(k)));
  }
};

// Chooses, for each of `queries` blocks, a subset of the blocks up to it: the pairs in order of
// queries.
struct ToySelect {
  static constexpr OpInfo kInfo = {
      "toy_select",
      6,
      {In("x"), Out("counts"), Out("ptr"), Out("first"), Out("second"), Out("total")}};
  struct Params {
    DimRef queries;
    i32 seed, most;  // at most so many blocks of a query
  };
  template <class W>
  static EVT_FN void Compute(W& w, const Task<Params>& t) {
    if (!w.Leader()) return;
    const i32 queries = t.Dim(t.params().queries);
    i32 pairs = 0;
    for (i32 q = 0; q < queries; ++q) {
      const i32 start = pairs;
      t.Operand<i32>(2)[q] = pairs;
      const u32 hash =
          MixBits(static_cast<u32>(t.params().seed), static_cast<u32>(t.Operand<const i32>(0)[q]));
      for (i32 k = 0; k <= q && pairs - start < t.params().most; ++k) {
        if (MixBits(hash, static_cast<u32>(k)) % 3 != 0) continue;
        t.Operand<i32>(3)[pairs] = q;
        t.Operand<i32>(4)[pairs] = k;
        ++pairs;
      }
      t.Operand<i32>(1)[q] = pairs - start;
    }
    t.Operand<i32>(2)[queries] = pairs;
    t.Operand<i32>(5)[0] = pairs;
  }
};

// Early exit: next[0] = how many of the first live[0] rows go on; live and next are instances of
// one tensor.
struct ToyExit {
  static constexpr OpInfo kInfo = {"toy_exit", 3, {In("x"), In("live"), Out("next")}};
  struct Params {
    i32 seed;
  };
  template <class W>
  static EVT_FN void Compute(W& w, const Task<Params>& t) {
    if (!w.Leader()) return;
    const i32 live = t.Operand<const i32>(1)[0];
    u32 sum = static_cast<u32>(t.params().seed);
    for (i32 i = 0; i < live; ++i) sum = MixBits(sum, static_cast<u32>(t.Operand<const i32>(0)[i]));
    t.Operand<i32>(2)[0] = static_cast<i32>(sum % static_cast<u32>(live + 1));
  }
};

// live[0] = rows: everything starts.
struct ToyStart {
  static constexpr OpInfo kInfo = {"toy_start", 1, {Out("live")}};
  struct Params {
    DimRef rows;
  };
  template <class W>
  static EVT_FN void Compute(W& w, const Task<Params>& t) {
    if (w.Leader()) t.Operand<i32>(0)[0] = t.Dim(t.params().rows);
  }
};

}  // namespace eventide
