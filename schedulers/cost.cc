#include "schedulers/cost.h"

#include <algorithm>
#include <set>

namespace eventide {
namespace {

int64_t MaxOf(const Program& program, const Expr& expr) {
  const BoundEnv env = {[&](const Expr& leaf) -> Interval {
    switch (leaf.kind()) {
      case ExprKind::kSymbol:
        return {program.symbols[leaf.index()].min, program.symbols[leaf.index()].max};
      case ExprKind::kLoad:
        return {program.tensors[leaf.index()].min_value, program.tensors[leaf.index()].max_value};
      default:
        return {0, INT32_MAX};
    }
  }};
  return std::max<int64_t>(0, Bound(expr, env).high);
}

}  // namespace

GridCost CostOf(const Program& program, int grid_index) {
  const ProgramGrid& grid = program.grids[grid_index];
  const int64_t layers = program.sections[grid.section].layers;
  GridCost cost;
  cost.max_tasks = 1;
  for (const Expr& extent : grid.extents)
    cost.max_tasks = SaturatingMul(cost.max_tasks, MaxOf(program, extent));
  std::set<int> counted;  // a tensor may stand for operands that a call does not use
  for (const Operand& operand : grid.operands) {
    if (!counted.insert(operand.tensor).second) continue;
    const TensorDecl& tensor = program.tensors[operand.tensor];
    const absl::StatusOr<int64_t> bytes = CapacityBytes(program, operand.tensor);
    if (!bytes.ok()) continue;
    if (tensor.role == TensorRole::kWeight) {
      const auto first = tensor.shape.empty() ? std::nullopt : tensor.shape[0].AsConstant();
      const bool per_layer = operand.indexed || (layers > 1 && first && *first == layers);
      cost.weight_bytes += per_layer && first && *first > 0 ? *bytes / *first : *bytes;
    }
  }
  // An extent from the device, or a range of elements read from the device: one task may have much
  // to do and the next one nothing, unless its op says that tasks are alike.
  cost.ragged = grid.device_extent;
  for (const Edge& edge : grid.waits) {
    for (const IndexRange& range : edge.index)
      cost.ragged = cost.ragged || (!range.single && range.high.HasLoad());
  }
  if (grid.op != nullptr && grid.op->even_tasks) cost.ragged = false;
  return cost;
}

}  // namespace eventide
