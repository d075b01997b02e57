#include "runtime/memory.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "absl/strings/str_format.h"

namespace eventide {
namespace {

// Which instances of a tensor a grid's operand names: the layer's is number first + step * layer.
struct Instances {
  int64_t first = 0, step = 0;
};

absl::StatusOr<int64_t> ConstantFirstDim(const Program& program, const TensorDecl& tensor,
                                         const ProgramGrid& grid) {
  const auto first = tensor.shape.empty() ? std::nullopt : tensor.shape[0].AsConstant();
  if (!first || *first <= 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s, grid %s: tensor %s is indexed by the layer, so its first dim must be "
                        "a positive constant",
                        program.name, grid.name, tensor.name));
  }
  return *first;
}

absl::StatusOr<Instances> LayerInstances(const Program& program, const ProgramGrid& grid,
                                         const Operand& operand) {
  const TensorDecl& tensor = program.tensors[operand.tensor];
  const int64_t layers = program.sections[grid.section].layers;
  if (!operand.indexed) {
    const auto first = tensor.shape.empty() ? std::nullopt : tensor.shape[0].AsConstant();
    const bool per_layer = layers > 1 && first && *first == layers;
    return Instances{0, per_layer ? 1 : 0};
  }
  ASSIGN_OR_RETURN(const int64_t count, ConstantFirstDim(program, tensor, grid));
  const auto instance = [&](int64_t layer) {
    ExprEnv env;
    env.layer = layer;
    return Evaluate(operand.layer, env);
  };
  Instances result{instance(0), layers > 1 ? instance(1) - instance(0) : 0};
  for (int64_t layer = 0; layer < layers; ++layer) {
    const int64_t at = instance(layer);
    if (at != result.first + result.step * layer) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s, grid %s: which layer's part of %s it uses must be an affine expression "
          "of the layer",
          program.name, grid.name, tensor.name));
    }
    if (at < 0 || at >= count) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s, grid %s, layer %d: part %d of tensor %s is used, but it has %d",
                          program.name, grid.name, layer, at, tensor.name, count));
    }
  }
  return result;
}

// Flags of the command line: who makes a graph of their own gives its symbols smaller maxima.
const char* WhatToLower(TensorRole role) {
  switch (role) {
    case TensorRole::kWeight:
      return "use a smaller model";
    case TensorRole::kState:
      return "lower --num-blocks, or --max-model-len and --max-num-seqs, which it follows where it is not given";
    default:
      return "lower --max-num-batched-tokens or --max-num-seqs";
  }
}

}  // namespace

absl::Status TooLittleMemory(const Program& program, const MemoryPlan& plan, const std::string& place,
                             int64_t free) {
  const int64_t needed = std::accumulate(plan.bytes.begin(), plan.bytes.end(), int64_t{0});
  const int64_t weights = plan.bytes[static_cast<size_t>(TensorRole::kWeight)];
  const int64_t state = plan.bytes[static_cast<size_t>(TensorRole::kState)];
  const int64_t rest = needed - weights - state;
  const TensorRole largest = state >= rest ? TensorRole::kState : TensorRole::kScratch;
  std::string advice = WhatToLower(largest);
  if (weights > free) {
    advice = absl::StrCat("its weights alone do not fit: ", WhatToLower(TensorRole::kWeight));
  } else if (weights + std::min(state, rest) > free) {
    advice = absl::StrCat(advice, "; and ",
                          WhatToLower(largest == TensorRole::kState ? TensorRole::kScratch : TensorRole::kState));
  }
  return absl::ResourceExhaustedError(absl::StrFormat(
      "%s needs %d MiB of memory (weights %d, state such as KV blocks %d, activations and the rest %d); %s has "
      "%d MiB free: %s, or end other processes there",
      program.name, needed >> 20, weights >> 20, state >> 20, rest >> 20, place, free >> 20, advice));
}

absl::StatusOr<MemoryPlan> PlanMemory(const Program& program, const std::vector<bool>& placed) {
  MemoryPlan plan;
  for (size_t i = 0; i < program.tensors.size(); ++i) {
    TensorPlace place;
    place.arena = static_cast<int>(program.tensors[i].role);
    ASSIGN_OR_RETURN(place.bytes, CapacityBytes(program, static_cast<int>(i)));
    if (i >= placed.size() || !placed[i]) {
      int64_t& total = plan.bytes[place.arena];
      place.offset = total;
      int64_t rounded = 0;
      if (__builtin_add_overflow(place.bytes, kTensorAlignment - 1, &rounded) ||
          __builtin_add_overflow(total, rounded / kTensorAlignment * kTensorAlignment, &total)) {
        return absl::InvalidArgumentError(
            absl::StrFormat("%s: with tensor %s the tensors of its role exceed 2^63 bytes; %s",
                            program.name, program.tensors[i].name,
                            WhatToLower(program.tensors[i].role)));
      }
    }
    plan.tensors.push_back(place);
  }
  return plan;
}

absl::Status CheckPlaced(const Program& program, const PlacedTensor& place) {
  if (place.tensor < 0 || place.tensor >= static_cast<int>(program.tensors.size()) ||
      place.data == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrFormat("placed tensor %d: no such tensor, or no data", place.tensor));
  }
  const TensorDecl& decl = program.tensors[place.tensor];
  if (decl.role == TensorRole::kWeight) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("tensor %s cannot be placed: only weights are never written", decl.name));
}

absl::StatusOr<OperandPlace> PlaceOf(const Program& program, const ProgramGrid& grid, const Operand& operand) {
  ASSIGN_OR_RETURN(const Instances instances, LayerInstances(program, grid, operand));
  OperandPlace place;
  ASSIGN_OR_RETURN(place.layer_bytes, CapacityBytes(program, operand.tensor));
  if (operand.indexed || instances.step != 0) {
    place.layer_bytes /= *program.tensors[operand.tensor].shape[0].AsConstant();
  }
  place.offset = instances.first * place.layer_bytes;
  place.layer_stride = instances.step * place.layer_bytes;
  return place;
}

absl::StatusOr<std::vector<Node>> BuildNodes(const Program& program,
                                             absl::Span<const uint64_t> addresses,
                                             absl::Span<const uint32_t> policies) {
  EVT_CHECK(addresses.size() == program.tensors.size());
  EVT_CHECK(policies.size() == program.grids.size());
  int count = 0;
  for (const ProgramGrid& grid : program.grids) count = std::max(count, grid.node + 1);
  std::vector<Node> nodes(count);
  for (size_t g = 0; g < program.grids.size(); ++g) {
    const ProgramGrid& grid = program.grids[g];
    if (grid.is_gate) continue;
    EVT_CHECK(grid.node >= 0);
    EVT_CHECK(grid.operands.size() <= kMaxOperands && grid.params.size() <= kMaxParamBytes);
    Node& node = nodes[grid.node];
    std::memset(static_cast<void*>(&node), 0, sizeof(node));
    node.kind = static_cast<uint32_t>(grid.kind);
    node.policy = policies[g];
    if (!grid.params.empty()) std::memcpy(node.params, grid.params.data(), grid.params.size());
    for (size_t i = 0; i < grid.operands.size(); ++i) {
      ASSIGN_OR_RETURN(const OperandPlace place, PlaceOf(program, grid, grid.operands[i]));
      node.operands[i] = {addresses[grid.operands[i].tensor] + static_cast<uint64_t>(place.offset),
                          place.layer_stride};
    }
  }
  return nodes;
}

absl::Status CheckStep(const Program& program, const StepHeader& header) {
  if (header.rows > header.rows_capacity) {
    return absl::InvalidArgumentError(absl::StrFormat("step: %d rows, but there is room for %d",
                                                      header.rows, header.rows_capacity));
  }
  if (header.rows > 0 && header.rows_ptr == 0) {
    return absl::InvalidArgumentError("step: rows without an address (rows_ptr is 0)");
  }
  for (size_t i = 0; i < program.symbols.size(); ++i) {
    const SymbolDecl& symbol = program.symbols[i];
    const int32_t value = header.symbols[i];
    if (value == kSumOfRows && symbol.min >= 0) continue;
    if (value < symbol.min || value > symbol.max) {
      return absl::InvalidArgumentError(
          absl::StrFormat("step: symbol %s is %d, outside its declared range [%d, %d]", symbol.name,
                          value, symbol.min, symbol.max));
    }
  }
  return absl::OkStatus();
}

}  // namespace eventide
