// y[token][c] = sum over j and pages p of weight[tile][p][c % 16][j] * x[token][j], modulo 2^32,
// one task per 8 tokens and 16 columns c. Weights stream through pages; x is copied once its event
// has fired.
#pragma once

#include "tests/jit/ops/toy_base.h"

namespace eventide {

struct ToyMix {
  static constexpr OpInfo kInfo = {"toy_mix", 3, {In("weight"), In("x"), Out("y")}, 1, 1};
  struct Params {
    DimRef tokens;
    i32 pages;  // of weights, per task
  };
  static constexpr i32 kRows = 16;
  static constexpr i32 kPageWords = kRows * kToyColumns;
  static constexpr u32 kRowBytes = kToyColumns * sizeof(u32);

  static EVT_FN i32 Tokens(const Task<Params>& t) {
    return Min(kToyTokens, t.Dim(t.params().tokens) - t.at.at[0] * kToyTokens);
  }
  static EVT_FN const u32* Weight(const Task<Params>& t, i32 page) {
    return t.template Operand<const u32>(0) +
           (static_cast<u64>(t.at.at[1]) * t.params().pages + page) * kPageWords;
  }

  template <class T, class L>
  static EVT_FN void Stream(L& lane, const Task<Params>& t) {
    for (i32 page = 0; page < t.params().pages; ++page) {
      lane.Copy(CopyShape::Of(1, kPageWords * sizeof(u32)), [&](i32, i32) { return Weight(t, page); });
    }
  }

  template <class T, class L>
  static EVT_FN void Input(L& lane, const Task<Params>& t) {
    const u32* x = t.template Operand<const u32>(1) + t.at.at[0] * kToyTokens * kToyColumns;
    lane.Copy(CopyShape::Of(Tokens(t), kRowBytes), [&](i32 token, i32) { return x + token * kToyColumns; });
  }

  template <class T, class W>
  static EVT_FN void Compute(W& w, const Task<Params>& t) {
    const i32 tokens = Tokens(t);
    u32* sums = reinterpret_cast<u32*>(w.Scratch());
    w.Parallel(tokens * kRows, [&](i32 i) { sums[i] = 0; });
    w.Sync();
    auto x = w.Take(kLaneInput);
    for (i32 page = 0; page < t.params().pages; ++page) {
      auto weight = w.Take(kLaneStream);
      w.Parallel(tokens * kRows, [&](i32 i) {
        const u32* xs = reinterpret_cast<const u32*>(x.Piece(i / kRows));
        const u32* ws = reinterpret_cast<const u32*>(weight.Piece(0)) + i % kRows * kToyColumns;
        u32 sum = 0;
        for (i32 j = 0; j < kToyColumns; ++j) sum += ws[j] * xs[j];
        sums[i] += sum;  // the same thread on every page: Parallel spreads equal ranges equally
      });
      w.Drop(kLaneStream);
      w.Sync();
    }
    w.Drop(kLaneInput);
    u32* y =
        t.template Operand<u32>(2) + t.at.at[0] * kToyTokens * kToyColumns + t.at.at[1] * kRows;
    w.Parallel(tokens * kRows, [&](i32 i) { y[i / kRows * kToyColumns + i % kRows] = sums[i]; });
  }
};

}  // namespace eventide
