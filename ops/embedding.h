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
  static constexpr i32 kPackedHeight = 32;
  static constexpr i32 kColumns = 256;  // of a task

  struct Params {
    DimRef tokens;
    i32 hidden;
    i32 vocab;
    i32 table_packed;  // the table is a packed linear (the tied head's) instead of [vocab][hidden]
  };

  template <class T, class W>
  static EVT_FN void Compute(W& w, const Task<Params>& t) {
    const Params& p = t.params();
    const i32 first = t.at.at[0] * kTokens;
    const i32 blocks = CeilDiv(p.hidden, 16);
    const i32 first_block = t.at.at[1] * (kColumns / 16);
    const i32 count = Min(blocks - first_block, kColumns / 16);
    const T* gain = t.Operand<const T>(kGain);
    float* x = t.Operand<float>(kX);
    T* next = t.Operand<T>(kNext);
    float* sums = t.Operand<float>(kNextSums);
    w.Parallel(Min(t.Dim(p.tokens) - first, kTokens) * count, [&](i32 i) {
      const i32 token = first + i / count, block = first_block + i % count;
      const i32 id = TokenId(t, token);
      const i32 end = Min(16, p.hidden - block * 16);
      // All loads before the first store: nothing else lets them overlap.
      const T* from = Block<T>(t, id, block);
      float values[16];
      for (i32 c = 0; c < 16; ++c) {
        const i32 at = p.table_packed ? W::FragmentElement(id % 16, c) : c;
        values[c] = ToFloat(from[c < end ? at : 0]);  // of a column beyond the end: any
      }
      float sum = 0.0f;
      float* residual = x + static_cast<i64>(token) * p.hidden + block * 16;
      T* to = next + ActivationIndex(p.hidden, token, block * 16);
      for (i32 c = 0; c < 16; ++c) {
        if (c >= end) continue;
        const float value = values[c];
        residual[c] = value;
        // ActivationColumn: the halves of 16 columns are neighbouring core matrices.
        to[c / 8 * 64 + c % 8] =
            Storage<T>::From(Multiply(value, ToFloat(gain[block * 16 + c])));
        sum = Fma(value, value, sum);
      }
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

  // Where the 16 columns of a block begin: in a row of the table, or in one fragment of the packed one.
  template <class T>
  static EVT_FN const T* Block(const Task<Params>& t, i32 id, i32 block) {
    const Params& p = t.params();
    const T* table = t.Operand<const T>(kTable);
    return table + (p.table_packed ? PackedFragment(kPackedHeight, p.hidden, id, block * 16)
                                   : static_cast<i64>(id) * p.hidden + block * 16);
  }
};

}  // namespace eventide
