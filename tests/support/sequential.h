// Runs a program of toy ops one task after the other in linear order, ignoring events: the values
// that any correct execution must have, and the published values that Verify asks for. Shares no
// code with the executors.
#pragma once

#include <map>
#include <vector>

#include "core/program.h"
#include "core/verify.h"
#include "device/dispatch.h"
#include "tests/support/toy_ops.h"

namespace eventide {

// The words of device/arch/ that toy ops use.
struct SequentialWorker {
  bool Leader() const { return true; }
  void Sync() {}
  template <class F>
  void Parallel(i32 n, const F& f) {
    for (i32 i = 0; i < n; ++i) f(i);
  }
};

using SequentialOp = void (*)(const StepView&, const Node&, Coord);

template <class Op>
void RunSequentialOp(const StepView& step, const Node& node, Coord at) {
  SequentialWorker worker;
  Op::Compute(worker, Task<typename Op::Params>{step, node, at, ParamsOf<Op>(node)});
}

inline SequentialOp FindSequentialOp(const OpInfo* op) {
  static const std::map<const OpInfo*, SequentialOp> table = {
      {&Mix0::kInfo, RunSequentialOp<Mix0>},
      {&Mix1::kInfo, RunSequentialOp<Mix1>},
      {&Mix2::kInfo, RunSequentialOp<Mix2>},
      {&Mix3::kInfo, RunSequentialOp<Mix3>},
      {&ToyChoose::kInfo, RunSequentialOp<ToyChoose>},
      {&ToyDispatch::kInfo, RunSequentialOp<ToyDispatch>},
      {&ToyTile::kInfo, RunSequentialOp<ToyTile>},
      {&ToyGatherRange::kInfo, RunSequentialOp<ToyGatherRange>},
      {&ToyCombine::kInfo, RunSequentialOp<ToyCombine>},
      {&ToyGroupSum::kInfo, RunSequentialOp<ToyGroupSum>},
      {&ToyPair::kInfo, RunSequentialOp<ToyPair>},
      {&ToySelect::kInfo, RunSequentialOp<ToySelect>},
      {&ToyExit::kInfo, RunSequentialOp<ToyExit>},
      {&ToyStart::kInfo, RunSequentialOp<ToyStart>},
  };
  const auto found = table.find(op);
  EVT_CHECK(found != table.end());
  return found->second;
}

// Tensors at their capacity; inputs and weights hold a hash of seed, tensor and element, the rest
// zero.
class ToySequential {
 public:
  ToySequential(const Program& program, const SymbolValues& symbols, uint64_t seed)
      : program_(program), symbols_(symbols) {
    for (size_t t = 0; t < program.tensors.size(); ++t) {
      const auto bytes = CapacityBytes(program, static_cast<int>(t));
      EVT_CHECK(bytes.ok());
      // One element more, so that empty tensors have an address.
      memory_.emplace_back(*bytes / sizeof(int32_t) + 1, 0);
      const TensorRole role = program.tensors[t].role;
      if (role != TensorRole::kInput && role != TensorRole::kWeight) continue;
      for (size_t i = 0; i < memory_[t].size(); ++i) {
        memory_[t][i] = static_cast<int32_t>(
            MixBits(MixBits(static_cast<u32>(seed), static_cast<u32>(t)), static_cast<u32>(i)));
      }
    }
  }

  void Run() {
    StepView step = {};
    for (size_t i = 0; i < symbols_.size(); ++i) step.symbols[i] = static_cast<i32>(symbols_[i]);
    for (size_t i = 0; i < program_.dims.size(); ++i)
      step.dims[i] = static_cast<i32>(Evaluate(program_.dims[i], Env(0)));
    for (const ProgramSection& section : program_.sections) {
      for (int64_t layer = 0; layer < section.layers; ++layer) {
        for (int g = section.first_grid; g < section.first_grid + section.grid_count; ++g)
          if (!program_.grids[g].is_gate) RunGrid(step, program_.grids[g], layer);
      }
    }
  }

  std::vector<std::vector<int32_t>>& memory() { return memory_; }
  int64_t Value(int tensor, int64_t element) const { return memory_[tensor].at(element); }

 private:
  ExprEnv Env(int64_t layer) const {
    ExprEnv env;
    env.symbols = symbols_.data();
    env.layer = layer;
    env.load = [this](int tensor, int64_t element) { return Value(tensor, element); };
    return env;
  }

  void RunGrid(const StepView& step, const ProgramGrid& grid, int64_t layer) {
    Node node = {};
    std::memcpy(node.params, grid.params.data(), grid.params.size());
    for (size_t i = 0; i < grid.operands.size(); ++i) {
      const Operand& operand = grid.operands[i];
      int64_t offset = 0;
      if (operand.indexed) {
        offset = Evaluate(operand.layer, Env(layer));
        for (size_t dim = 1; dim < program_.tensors[operand.tensor].shape.size(); ++dim)
          offset *= Capacity(program_.tensors[operand.tensor].shape[dim]);
      }
      node.operands[i].address = reinterpret_cast<u64>(memory_[operand.tensor].data() + offset);
    }
    int64_t extents[kMaxCoords] = {1, 1, 1};
    for (size_t i = 0; i < grid.extents.size(); ++i)
      extents[i] = Evaluate(grid.extents[i], Env(layer));
    const SequentialOp op = FindSequentialOp(grid.op);
    for (int64_t a = 0; a < extents[0]; ++a) {
      for (int64_t b = 0; b < extents[1]; ++b) {
        for (int64_t c = 0; c < extents[2]; ++c) {
          op(step, node,
             {static_cast<i32>(layer),
              {static_cast<i32>(a), static_cast<i32>(b), static_cast<i32>(c)}});
        }
      }
    }
  }

  int64_t Capacity(const Expr& dim) const {
    std::vector<int64_t> most;
    for (const SymbolDecl& symbol : program_.symbols) most.push_back(symbol.max);
    ExprEnv env;
    env.symbols = most.data();
    return Evaluate(dim, env);
  }

  const Program& program_;
  SymbolValues symbols_;
  std::vector<std::vector<int32_t>> memory_;
};

// For VerifyOptions::sample_published: published values of a whole sequential run.
inline std::function<PublishedValues(const SymbolValues&, uint64_t)> SequentialOracle(
    const Graph& graph) {
  VerifyOptions structure_only;
  auto program = std::make_shared<absl::StatusOr<Program>>(Lower(graph, structure_only));
  EVT_CHECK(program->ok());
  return [program](const SymbolValues& symbols, uint64_t seed) -> PublishedValues {
    auto run = std::make_shared<ToySequential>(**program, symbols, seed);
    run->Run();
    return [program, run](int tensor, int64_t element) { return run->Value(tensor, element); };
  };
}

}  // namespace eventide
