// A graph that must be refused, and what most of them start from.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/verify.h"
#include "tests/support/sequential.h"
#include "tests/support/toy_ops.h"

namespace eventide::unsound {

struct FloorOp {
  static constexpr OpInfo kInfo = {"floor_op", 1, {Out("y")}, 5, 4};
  using Params = ToyParams;
};
struct StreamOp {
  static constexpr OpInfo kInfo = {"stream_op", 1, {Out("y")}, 9, 0};
  using Params = ToyParams;
};
struct NegativeFloorOp {
  static constexpr OpInfo kInfo = {"negative_floor", 1, {Out("y")}, -1, 0};
  using Params = ToyParams;
};

// What most rows start from: rows in [0, 64], tensors and events by need.
struct Base {
  Graph g{"unsound"};
  Expr rows = g.AddSymbol("rows", 0, 64);
  TensorId in = g.AddTensor("in", DType::kI32, {rows}, TensorRole::kInput);
  TensorId x = g.AddTensor("x", DType::kI32, {rows}, TensorRole::kScratch);
  TensorId y = g.AddTensor("y", DType::kI32, {rows}, TensorRole::kScratch);
  TensorId out = g.AddTensor("out", DType::kI32, {rows}, TensorRole::kOutput);

  TensorId Scratch(const std::string& name, std::vector<Expr> shape) {
    return g.AddTensor(name, DType::kI32, std::move(shape), TensorRole::kScratch);
  }
  static Operand Row(TensorId tensor) { return Operand(tensor).Region({At(0)}); }
  static Operand Tile(TensorId tensor, const Expr& rows) {
    return Operand(tensor).Region({IndexRange(At(0) * 4, Min(At(0) * 4 + 4, rows))});
  }
  // in -> x, one task a row.
  GridHandle Produce(const char* name = "produce") {
    return g.Call<Mix1>(name, {Row(in), Row(x)}, {}, {rows});
  }
  // x -> out, one task a row.
  GridHandle Consume(const char* name = "consume") {
    return g.Call<Mix1>(name, {Row(x), Row(out)}, {}, {rows});
  }
};

struct Case {
  const char* kind;
  const char* name;
  std::function<Graph()> build;
  std::vector<std::string> words;  // all in the message
  int pool_pages = 0;
};

}  // namespace eventide::unsound
