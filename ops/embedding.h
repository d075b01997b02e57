// The first residual of 8 tokens: rows of the embedding table, their norm's input for the first
// layer (x * gain, and sums of squares over blocks of 16 columns, as ops/linear.h leaves them),
// straight from the token history of each row's slot.
#pragma once

#include "device/dtype.h"
#include "device/layout.h"
#include "device/op.h"

namespace eventide {

struct Embedding {
  static constexpr OpInfo kInfo = {"embedding",
                                   7,
                                   {In("table"), In("gain"), In("row_start"), In("token_row"),
                                    Out("x"), Out("next"), Out("next_sums")}};
  enum : int { kTable, kGain, kRowStart, kTokenRow, kX, kNext, kNextSums };

  static constexpr i32 kTokens = 8;  // of a task
  static constexpr i32 kColumns = 64;  // of a task: small, so that a thread has little to wait for

  struct Params {
    DimRef tokens;
    i32 hidden;
    i32 vocab;
    i32 packed_rows;  // of a tile, if the table is a packed linear (the tied head's);
                      // 0: [vocab][hidden]
  };

  template <class T, class W>
  static EVT_FN void Compute(W& w, const Task<Params>& t) {
    const Params& p = t.params();
    const i32 first = t.at.at[0] * kTokens;
    const i32 first_column = t.at.at[1] * kColumns;
    const i32 tokens = Min(t.Dim(p.tokens) - first, kTokens);
    const T* gain = t.Operand<const T>(kGain);
    float* x = t.Operand<float>(kX) + static_cast<i64>(first) * p.hidden;
    T* next = t.Operand<T>(kNext);
    w.Parallel(tokens * kColumns, [&](i32 i) {
      const i32 token = i / kColumns, column = first_column + i % kColumns;
      if (column >= p.hidden) return;
      const float value = ToFloat(*Element<T, W>(t, TokenId(t, first + token), column));
      x[static_cast<i64>(token) * p.hidden + column] = value;
      next[ActivationIndex(p.hidden, first + token, column)] =
          Storage<T>::From(Multiply(value, ToFloat(gain[column])));
    });
    w.Sync();  // the sums are of what other threads wrote
    const i32 blocks = CeilDiv(p.hidden, 16);
    float* sums = t.Operand<float>(kNextSums) + static_cast<i64>(first) * blocks;
    w.Parallel(tokens * (kColumns / 16), [&](i32 i) {
      const i32 token = i / (kColumns / 16), block = first_column / 16 + i % (kColumns / 16);
      if (block >= blocks) return;
      const float* columns = x + static_cast<i64>(token) * p.hidden + block * 16;
      float sum = 0.0f;
      for (i32 c = 0; c < Min(16, p.hidden - block * 16); ++c) sum = Fma(columns[c], columns[c], sum);
      sums[static_cast<i64>(token) * blocks + block] = sum;
    });
  }

 private:
  static EVT_FN i32 TokenId(const Task<Params>& t, i32 token) {
    const i32 row = t.Operand<const i32>(kTokenRow)[token];
    const SlotState& slot = t.step.Slots()[t.step.Rows()[row].slot];
    const i32 at = token - t.Operand<const i32>(kRowStart)[row];
    const i32 id =
        reinterpret_cast<const i32*>(slot.history)[slot.context_length + static_cast<u32>(at)];
    return Max(0,
               Min(id, t.params().vocab - 1));  // the host checks ids; memory stays safe regardless
  }

  // In a row of the table, or in one fragment of the packed one.
  template <class T, class W>
  static EVT_FN const T* Element(const Task<Params>& t, i32 id, i32 column) {
    const Params& p = t.params();
    const T* table = t.Operand<const T>(kTable);
    if (p.packed_rows == 0) return table + static_cast<i64>(id) * p.hidden + column;
    return table + PackedFragment(p.packed_rows, p.hidden, id, column) +
           W::FragmentElement(id % 16, column % 16);
  }
};

}  // namespace eventide
