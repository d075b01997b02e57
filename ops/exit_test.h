// Decides tokens at one point of early exit: a token is decided if the cosine between its state now and at
// the point before (the first point: the embedding) is at least the layer's threshold. States that no longer
// turn have saturated (Schuster et al. 2022, "Confident adaptive language modeling", compare the same two).
// It costs two reads of a state; a test of logits would cost the head's weights, which are as many bytes as
// many layers.
//
// Leaves in "state" what each token that was not decided before has now: the next point's other side, or
// what it leaves with. NaN decides nobody.
#pragma once

#include "device/op.h"
#include "ops/exit_tables.h"

namespace eventide {

struct ExitTest {
  static constexpr OpInfo kInfo = {
      "exit_test",
      7,
      {In("x"), In("sums"), In("counts"), In("threshold"), InOut("decided"), InOut("state"),
       InOut("state_sums")},
      /*stream_floor=*/0,
      /*input_floor=*/0,
      /*constant_params=*/false,
      /*starts_early=*/false,
      /*even_tasks=*/true};
  enum : int {
    kX,
    kSums,       // float[token][blocks of 16 columns]: of squares, as they go with the state
    kCounts,     // the layer's line
    kThreshold,  // float, of the layer
    kDecided,    // i32[token]
    kState,
    kStateSums,
  };

  static constexpr i32 kTokens = kExitTestTokens;  // of a task

  struct Params {
    i32 hidden;
  };

  template <class T, class W>
  static EVT_FN void Compute(W& w, const Task<Params>& t) {
    const Params& p = t.params();
    const i32 first = t.at.at[0] * kTokens;
    const i32 tokens = Min(t.Operand<const i32>(kCounts)[kExitStay] - first, kTokens);
    const i64 begin = static_cast<i64>(first) * p.hidden;
    const float* x = t.Operand<const float>(kX) + begin;
    float* state = t.Operand<float>(kState) + begin;
    i32* decided = t.Operand<i32>(kDecided) + first;
    float* products = reinterpret_cast<float*>(w.Scratch());  // of each token: x s, x x, s s
    i32* before = reinterpret_cast<i32*>(products + 3 * kTokens);
    w.RowSums(
        3 * tokens, p.hidden,
        [&](i32 i, i32 column) {
          const i64 at = static_cast<i64>(i / 3) * p.hidden + column;
          return Multiply(i % 3 == 2 ? state[at] : x[at], i % 3 == 1 ? x[at] : state[at]);
        },
        [&](i32 i, float sum) { products[i] = sum; });
    w.Sync();
    w.Parallel(tokens, [&](i32 i) {
      before[i] = decided[i];
      decided[i] = before[i] || Saturated(t, products + 3 * i) ? 1 : 0;
    });
    w.Sync();
    w.Parallel(tokens * p.hidden, [&](i32 i) {
      if (!before[i / p.hidden]) state[i] = x[i];
    });
    const i32 blocks = CeilDiv(p.hidden, 16);
    const float* sums = t.Operand<const float>(kSums) + static_cast<i64>(first) * blocks;
    float* state_sums = t.Operand<float>(kStateSums) + static_cast<i64>(first) * blocks;
    w.Parallel(tokens * blocks, [&](i32 i) {
      if (!before[i / blocks]) state_sums[i] = sums[i];
    });
  }

 private:
  static EVT_FN bool Saturated(const Task<Params>& t, const float* products) {
    const float lengths = Multiply(SquareRoot(products[1]), SquareRoot(products[2]));
    return lengths > 0.0f && products[0] >= Multiply(t.Operand<const float>(kThreshold)[0], lengths);
  }
};

}  // namespace eventide
