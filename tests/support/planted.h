// A program with a planted fault that Verify would refuse: with "present" = 0 the first grid's
// tasks forget to notify.
#pragma once

#include "core/program.h"
#include "tests/support/runtime_ops.h"

namespace eventide {

struct PlantedProgram {
  Program program;
  TensorId weights, x, y, z;
};

inline PlantedProgram MissingNotify() {
  Graph g("planted");
  PlantedProgram planted;
  const Expr rows = g.AddSymbol("rows", 1, 8);
  const Expr present = g.AddSymbol("present", 0, 1);
  planted.weights = g.AddTensor("weights", DType::kU8, {4096}, TensorRole::kWeight);
  planted.x = g.AddTensor("x", DType::kU8, {16, kRecordBytes}, TensorRole::kInput);
  planted.y = g.AddTensor("y", DType::kU8, {rows, kRecordBytes}, TensorRole::kScratch);
  planted.z = g.AddTensor("z", DType::kU8, {rows, kRecordBytes}, TensorRole::kOutput);
  const EventId done = g.AddEvents("y_done", {1});
  const DimRef count = g.Dim(rows);
  g.Call<PageSum1>("first", {planted.weights, planted.x, planted.x, planted.y},
                   {1, 2, 2, {{-1, 2}, {-1, 1}}, 1}, {rows})
      .Notify(done, {0});
  g.Call<PageSum1>("second", {planted.weights, planted.y, planted.x, planted.z},
                   {2, 2, 2, {count, {-1, 1}}, 1}, {rows})
      .Wait(done, {0});
  absl::StatusOr<Program> program = Lower(g);
  EVT_CHECK(program.ok());
  planted.program = *std::move(program);
  planted.program.grids[0].notifies[0].index[0] = IndexRange(Expr(0), present);
  return planted;
}

}  // namespace eventide
