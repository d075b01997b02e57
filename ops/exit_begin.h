// The tables of early exit at the beginning of a step (ops/exit_tables.h): nobody has left.
#pragma once

#include "device/op.h"
#include "ops/exit_tables.h"
#include "ops/step_tables.h"

namespace eventide {

struct ExitBegin {
  static constexpr OpInfo kInfo = {
      "exit_begin",
      6,
      {In("row_start"), In("output_token"), In("plan_counts"), Out("row_place"),
       Out("output_place"), Out("counts")}};
  enum : int { kRowStart, kOutputToken, kPlanCounts, kRowPlace, kOutputPlace, kCounts };

  struct Params {
    ExitPoints points;
    i32 layers;
  };

  template <class T, class W>
  static EVT_FN void Compute(W& w, const Task<Params>& t) {
    const i32* plan = t.Operand<const i32>(kPlanCounts);
    const i32* row_start = t.Operand<const i32>(kRowStart);
    const i32* output_token = t.Operand<const i32>(kOutputToken);
    i32* row_place = t.Operand<i32>(kRowPlace);
    i32* output_place = t.Operand<i32>(kOutputPlace);
    w.Parallel(static_cast<i32>(t.step.header->rows), [&](i32 r) { row_place[r] = row_start[r]; });
    w.Parallel(plan[kCountOutputs], [&](i32 i) { output_place[i] = output_token[i]; });
    PublishExits(w, t.Operand<i32>(kCounts), t.params().points, 0, t.params().layers + 1,
                 {plan[kCountTokens], 0, plan[kCountItems], plan[kCountOutputs], 0, 0});
  }
};

}  // namespace eventide
