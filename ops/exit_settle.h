// Between two layers of early exit (ops/exit_tables.h), for 64 columns of all tokens:
//
//   at a point      everyone's state goes where `exit_rows` sends it: those who stay move together, those
//                   who leave go behind the step's tokens
//   anywhere else   tokens that have been decided and wait for their row get their state back
//
// The layer's input of those who stay follows from their states in the same bits as behind a linear. In
// place: a thread takes its column through the tokens in their order, and nobody moves back.
#pragma once

#include "device/dtype.h"
#include "device/layout.h"
#include "device/op.h"
#include "ops/exit_tables.h"

namespace eventide {

struct ExitSettle {
  static constexpr OpInfo kInfo = {
      "exit_settle",
      12,
      {In("decided"), In("target"), In("counts"), In("gain"), InOut("state"), InOut("state_sums"),
       Out("x"), Out("left_x"), Out("next"), Out("sums"), Out("behind_sums"), Out("left_sums")},
      /*stream_floor=*/0,
      /*input_floor=*/0,
      /*constant_params=*/false,
      /*starts_early=*/false,
      /*even_tasks=*/true};
  enum : int {
    kDecided,
    kTarget,
    kCounts,  // the line of the layer in front
    kGain,    // of the layer behind
    kState,
    kStateSums,
    kX,      // float[2 tokens][hidden]
    kLeftX,  // the same tensor, where those who leave go
    kNext,
    kSums,        // float[2 tokens][blocks]
    kBehindSums,  // likewise
    kLeftSums,    // float[left][blocks]
  };

  static constexpr i32 kColumns = 64;  // of a task

  struct Params {
    DimRef tokens;
    ExitPoints points;
    i32 hidden;
  };

  template <class T, class W>
  static EVT_FN void Compute(W& w, const Task<Params>& t) {
    const Params& p = t.params();
    const i32 here = t.Operand<const i32>(kCounts)[kExitStay];
    const i32 first = t.at.at[0] * kColumns;
    const i32 columns = Min(p.hidden - first, kColumns), blocks = CeilDiv(columns, 16);
    const i32 all_blocks = CeilDiv(p.hidden, 16);
    // Columns of states, then their sums: floats alike, and one piece of code.
    w.Parallel(columns + blocks, [&](i32 i) {
      const bool sums = i >= columns;
      const i32 column = sums ? first / 16 + i - columns : first + i;
      Strand<T> strand;
      strand.stride = sums ? all_blocks : p.hidden;
      strand.state = t.Operand<float>(sums ? kStateSums : kState) + column;
      strand.output = t.Operand<float>(sums ? kSums : kX) + column;
      strand.left = sums ? t.Operand<float>(kLeftSums) + column : nullptr;
      strand.next = sums ? nullptr
                         : t.Operand<T>(kNext) + ActivationColumn(SegmentSteps(p.hidden), column);
      strand.gain = sums ? 0.0f : ToFloat(t.Operand<const T>(kGain)[column]);
      Settle(t, here, strand);
    });
  }

 private:
  static constexpr i32 kTogether = 4;  // loads that are on their way at once

  // What one thread moves: an element of every token.
  template <class T>
  struct Strand {
    float *state, *output, *left;  // left: null for states, which go behind the step's tokens alone
    T* next;                       // null for sums
    float gain;
    i32 stride;
  };

  template <class T>
  static EVT_FN void Settle(const Task<Params>& t, i32 here, const Strand<T>& strand) {
    const Params& p = t.params();
    // Where a token's state goes; at a point that is written down, elsewhere the decided stay in place.
    const bool point = p.points.InFrontOf(t.at.layer + 1);
    const i32* table = t.Operand<const i32>(point ? kTarget : kDecided);
    const i32 tokens = t.Dim(p.tokens);
    const i32 group = static_cast<i32>(ActivationGroup(p.hidden));
    EVT_ROLLED
    for (i32 first = 0; first < here; first += kTogether) {
      float value[kTogether];
      i32 to[kTogether];
      for (i32 i = 0; i < kTogether; ++i) {
        const i32 token = Min(first + i, here - 1);
        to[i] = table[token];
        value[i] = strand.state[static_cast<i64>(token) * strand.stride];
      }
      EVT_ROLLED
      for (i32 i = 0; i < Min(here - first, kTogether); ++i) {
        i32 where = to[0];
        const float moved = value[0];
        for (i32 k = 1; k < kTogether; ++k) {  // registers: no index
          to[k - 1] = to[k];
          value[k - 1] = value[k];
        }
        if (!point) where = where ? first + i : -1;
        if (where < 0) continue;
        strand.output[static_cast<i64>(where) * strand.stride] = moved;
        if (where < tokens) {
          strand.state[static_cast<i64>(where) * strand.stride] = moved;
          if (strand.next != nullptr) {
            strand.next[static_cast<i64>(where / 8) * group + where % 8 * 8] =
                Storage<T>::From(Multiply(moved, strand.gain));
          }
        } else if (strand.left != nullptr) {
          strand.left[static_cast<i64>(where - tokens) * strand.stride] = moved;
        }
      }
    }
  }
};

}  // namespace eventide
