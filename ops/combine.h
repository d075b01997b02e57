// The end of a layer of experts, for 4 tokens x 256 columns: the residual takes up the outputs of each token's
// experts, best first, times their weights, then the shared expert's; leaves the next norm's input as
// ops/linear.h does after a residual.
//
// The order is that of ranks, a property of the token alone: neither neighbours nor arrival change it.
#pragma once

#include "device/dtype.h"
#include "device/layout.h"
#include "device/neighbours.h"
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
  // the experts' grids, whose extents `route` published with it. A thread has neighbouring columns of one token.
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
      w.Sync();  // the task before, or the ranks before, may still be reading Scratch
      w.Parallel(tokens * kRanksAtOnce, [&](i32 i) {
        if (i % kRanksAtOnce >= ranks) return;
        const i64 pair = static_cast<i64>(first + i / kRanksAtOnce) * p.top_k + rank + i % kRanksAtOnce;
        m.terms[i] = {t.Operand<const i32>(kPairSlot)[pair], t.Operand<const RoutedPair>(kPairs)[pair].weight};
      });
      if (rank > 0) {
        w.Sync();
      } else if (!w.AwaitReady()) {
        return;
      }
      if (p.hidden % kEach == 0) {
        w.Parallel(tokens * (kColumns / kEach), [&](i32 i) {
          Columns<T, kEach>(t, m, first, i / (kColumns / kEach), i % (kColumns / kEach) * kEach, rank, ranks);
        });
      } else {
        w.Parallel(tokens * kColumns,
                   [&](i32 i) { Columns<T, 1>(t, m, first, i / kColumns, i % kColumns, rank, ranks); });
      }
    }
    w.Sync();
    const i32 columns = Min(p.hidden - t.at.at[1] * kColumns, kColumns), blocks = CeilDiv(columns, 16);
    float* next_sums = t.Operand<float>(kNextSums);
    w.Parallel(kTokens * (kColumns / 16), [&](i32 i) {
      const i32 token = i / (kColumns / 16), block = i % (kColumns / 16);
      if (token >= tokens || block >= blocks) return;
      const Neighbours<float, kEach>* values = m.sums + (token * kColumns + block * 16) / kEach;
      float sum = 0.0f;
      for (i32 c = 0; c < 16; ++c) {
        const float value = values[c / kEach].at[c % kEach];
        if (block * 16 + c < columns) sum = Fma(value, value, sum);
      }
      next_sums[static_cast<i64>(first + token) * CeilDiv(p.hidden, 16) + t.at.at[1] * (kColumns / 16) + block] = sum;
    });
  }

 private:
  static constexpr i32 kEach = 4;  // columns of a thread
  static constexpr i32 kRanksAtOnce = 128;

  struct Term {
    i32 slot;
    float weight;
  };
  struct Memory {
    Neighbours<float, kEach> sums[kTokens * kColumns / kEach];
    Term terms[kTokens * kRanksAtOnce];
  };
  static_assert(sizeof(Memory) <= kScratchBytes);

  // Adds `ranks` terms from `rank` on to kCount columns of a token, and ends them with the last.
  template <class T, i32 kCount>
  static EVT_FN void Columns(const Task<Params>& t, Memory& m, i32 first, i32 token, i32 column, i32 rank, i32 ranks) {
    using Floats = Neighbours<float, kCount>;
    constexpr i32 kLoads = 8;  // terms whose loads are on their way together
    const Params& p = t.params();
    const i32 at = t.at.at[1] * kColumns + column;
    if (at >= p.hidden) return;
    const bool ends = rank + ranks == p.top_k, shared = p.shared_gate >= 0;
    const float* outputs = t.Operand<const float>(kOutputs) + at;
    const Term* terms = m.terms + token * kRanksAtOnce;
    Floats& here = *reinterpret_cast<Floats*>(reinterpret_cast<float*>(m.sums) + token * kColumns + column);
    const i64 row = static_cast<i64>(first + token) * p.hidden + at;
    Floats& x = *reinterpret_cast<Floats*>(t.Operand<float>(kX) + row);
    // All that comes from memory is asked for before any of it is needed.
    const Floats before = x;
    const auto gain = Neighbours<T, kCount>::Of(t.Operand<const T>(kGain) + at);
    Floats with = {}, sum = {};
    if (shared) with = Floats::Of(t.Operand<const float>(kShared) + row);
    if (rank > 0) sum = here;
    T* next = t.Operand<T>(kNext) + ActivationIndex(p.hidden, first + token, at);
    EVT_ROLLED
    for (i32 k = 0; k < ranks; k += kLoads) {
      Floats value[kLoads];
      for (i32 l = 0; l < kLoads; ++l) {
        value[l] = Floats::Of(outputs + static_cast<i64>(terms[Min(k + l, ranks - 1)].slot) * p.hidden);
      }
      for (i32 l = 0; l < kLoads; ++l) {
        if (k + l >= ranks) continue;
        const float weight = terms[k + l].weight;
        for (i32 j = 0; j < kCount; ++j) sum.at[j] = Fma(weight, value[l].at[j], sum.at[j]);
      }
    }
    if (ends) {
      const float gate = shared ? Gate(t, first + token) : 0.0f;
      Neighbours<T, kCount> scaled;
      for (i32 j = 0; j < kCount; ++j) {
        if (shared) sum.at[j] = Fma(gate, with.at[j], sum.at[j]);
        sum.at[j] = Add(before.at[j], sum.at[j]);
        scaled.at[j] = Storage<T>::From(Multiply(sum.at[j], ToFloat(gain.at[j])));
      }
      x = sum;
      scaled.To(next);
    }
    here = sum;
  }

  static EVT_FN float Gate(const Task<Params>& t, i32 token) {
    constexpr float kLog2E = 1.4426950408889634f;
    const Params& p = t.params();
    const float logit = t.Operand<const float>(kLogits)[static_cast<i64>(token) * p.logits_stride + p.shared_gate];
    return Divide(1.0f, Add(1.0f, Exp2(Multiply(-logit, kLog2E))));
  }
};

}  // namespace eventide
