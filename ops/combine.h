// The end of a layer of experts, for 4 tokens x 256 columns: the residual takes up the outputs of each token's
// experts, best first, times their weights, then the shared expert's; leaves the next norm's input as
// ops/linear.h does after a residual.
//
// The order is that of ranks, a property of the token alone: neither neighbours nor arrival change it.
#pragma once

#include "device/dtype.h"
#include "device/layout.h"
#include "device/op.h"
#include "ops/expert_tables.h"

namespace eventide {

struct Combine {
  static constexpr OpInfo kInfo = {
      "combine",
      10,
      {In("outputs"), In("pairs"), In("pair_slot"), In("shared"), In("logits"), In("gain"),
       InOut("x"), Out("next"), Out("next_sums"), In("count")},
      /*stream_floor=*/0, /*input_floor=*/0, /*constant_params=*/false,
      /*starts_early=*/true};
  enum : int {
    kOutputs,  // float[slots][hidden]: what experts computed
    kPairs,
    kPairSlot,
    kShared,  // float[tokens][hidden]: what the shared expert computed
    kLogits,  // float[tokens][logits_stride]
    kGain,
    kX,
    kNext,
    kNextSums,
    kCount,  // i32[]: see Params
  };

  static constexpr i32 kTokens = 4;     // of a task
  static constexpr i32 kColumns = 256;  // likewise

  struct Params {
    DimRef tokens;
    i32 count_index;  // >= 0: the element of operand "count" that holds them
    i32 hidden;
    i32 top_k;
    i32 shared_gate;  // >= 0: there is a shared expert, times the sigmoid of this column of "logits"
    i32 logits_stride;
  };

  // Where the experts of its tokens put their outputs is looked up before these are there: every worker has passed
  // the experts' grids, whose extents `route` published with it.
  template <class T, class W>
  static EVT_FN void Compute(W& w, const Task<Params>& t) {
    const Params& p = t.params();
    const i32 first = t.at.at[0] * kTokens;
    const i32 all = p.count_index < 0 ? t.Dim(p.tokens) : t.Operand<const i32>(kCount)[p.count_index];
    const i32 tokens = Min(all - first, kTokens);
    Memory& m = *reinterpret_cast<Memory*>(w.Scratch());
    EVT_ROLLED
    for (i32 rank = 0; rank < p.top_k; rank += kRanksAtOnce) {
      const i32 ranks = Min(p.top_k - rank, kRanksAtOnce);
      if (rank > 0) w.Sync();
      w.Parallel(tokens * ranks, [&](i32 i) {
        const i32 token = i / ranks;
        const i64 pair = static_cast<i64>(first + token) * p.top_k + rank + i % ranks;
        m.terms[token * kRanksAtOnce + i % ranks] = {t.Operand<const i32>(kPairSlot)[pair],
                                                     t.Operand<const RoutedPair>(kPairs)[pair].weight};
      });
      if (rank > 0) {
        w.Sync();
      } else if (!w.AwaitReady()) {
        return;
      }
      w.Parallel(kTokens * kApart, [&](i32 i) {
        if (i / kApart < tokens) Columns<T>(t, m, first, i / kApart, i % kApart, rank, ranks);
      });
    }
    w.Sync();
    const i32 columns = Min(p.hidden - t.at.at[1] * kColumns, kColumns), blocks = CeilDiv(columns, 16);
    float* next_sums = t.Operand<float>(kNextSums);
    w.Parallel(kTokens * (kColumns / 16), [&](i32 i) {
      const i32 token = i / (kColumns / 16), block = i % (kColumns / 16);
      if (token >= tokens || block >= blocks) return;
      const float* values = m.sums + token * kColumns + block * 16;
      float sum = 0.0f;
      for (i32 c = 0; c < 16; ++c) {
        const float value = values[c];
        if (block * 16 + c < columns) sum = Fma(value, value, sum);
      }
      next_sums[static_cast<i64>(first + token) * CeilDiv(p.hidden, 16) + t.at.at[1] * (kColumns / 16) + block] = sum;
    });
  }

 private:
  static constexpr i32 kEach = 4;  // columns of a thread, kApart apart
  static constexpr i32 kApart = kColumns / kEach;
  static constexpr i32 kRanksAtOnce = 128;

  struct Term {
    i32 slot;
    float weight;
  };
  struct Memory {
    float sums[kTokens * kColumns];
    Term terms[kTokens * kRanksAtOnce];
  };
  static_assert(sizeof(Memory) <= kScratchBytes);

  // Adds `ranks` terms from `rank` on to some columns of a token, and ends them with the last.
  template <class T>
  static EVT_FN void Columns(const Task<Params>& t, Memory& m, i32 first, i32 token, i32 column, i32 rank, i32 ranks) {
    constexpr i32 kLoads = 8;  // terms whose loads are on their way together
    const Params& p = t.params();
    const i32 first_column = t.at.at[1] * kColumns;
    const i32 last = Min(p.hidden - first_column, kColumns) - 1;
    const bool ends = rank + ranks == p.top_k, shared = p.shared_gate >= 0;
    const float* outputs = t.Operand<const float>(kOutputs) + first_column;
    const Term* terms = m.terms + token * kRanksAtOnce;
    float* sums = m.sums + token * kColumns;
    const i64 row = static_cast<i64>(first + token) * p.hidden + first_column;
    float* x = t.Operand<float>(kX) + row;
    T* next = t.Operand<T>(kNext);
    i32 at[kEach];
    i64 to[kEach];
    float sum[kEach], before[kEach], with[kEach] = {};
    T gain[kEach];
    // All that comes from memory is asked for before any of it is needed.
    for (i32 j = 0; j < kEach; ++j) {
      at[j] = Min(column + j * kApart, last);
      to[j] = ActivationIndex(p.hidden, first + token, first_column + at[j]);
      before[j] = x[at[j]];
      gain[j] = t.Operand<const T>(kGain)[first_column + at[j]];
      if (shared) with[j] = t.Operand<const float>(kShared)[row + at[j]];
      sum[j] = rank > 0 ? sums[at[j]] : 0.0f;
    }
    EVT_ROLLED
    for (i32 k = 0; k < ranks; k += kLoads) {
      float value[kLoads][kEach];
      for (i32 l = 0; l < kLoads; ++l) {
        const float* from = outputs + static_cast<i64>(terms[Min(k + l, ranks - 1)].slot) * p.hidden;
        for (i32 j = 0; j < kEach; ++j) value[l][j] = from[at[j]];
      }
      for (i32 l = 0; l < kLoads; ++l) {
        if (k + l >= ranks) continue;
        const float weight = terms[k + l].weight;
        for (i32 j = 0; j < kEach; ++j) sum[j] = Fma(weight, value[l][j], sum[j]);
      }
    }
    const float gate = shared && ends ? Gate(t, first + token) : 0.0f;
    for (i32 j = 0; j < kEach; ++j) {
      if (column + j * kApart > last) continue;
      float value = sum[j];
      if (ends) {
        if (shared) value = Fma(gate, with[j], value);
        value = Add(before[j], value);
        x[at[j]] = value;
        next[to[j]] = Storage<T>::From(Multiply(value, ToFloat(gain[j])));
      }
      sums[at[j]] = value;
    }
  }

  static EVT_FN float Gate(const Task<Params>& t, i32 token) {
    constexpr float kLog2E = 1.4426950408889634f;
    const Params& p = t.params();
    const float logit = t.Operand<const float>(kLogits)[static_cast<i64>(token) * p.logits_stride + p.shared_gate];
    return Divide(1.0f, Add(1.0f, Exp2(Multiply(-logit, kLog2E))));
  }
};

}  // namespace eventide
