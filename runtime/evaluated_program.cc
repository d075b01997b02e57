#include "runtime/evaluated_program.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace eventide {

EvaluatedProgram::EvaluatedProgram(const Program& program, std::vector<Node> nodes,
                                   absl::Span<const uint64_t> addresses)
    : program_(&program), nodes_(std::move(nodes)) {
  EVT_CHECK(program.symbols.size() <= kMaxSymbols && program.dims.size() <= kMaxDims);
  EVT_CHECK(addresses.size() == program.tensors.size());
  for (const ProgramGrid& decl : program.grids) {
    EVT_CHECK(decl.extents.size() <= kMaxCoords);
    Grid grid;
    if (!decl.is_gate) {
      grid.node = &nodes_[decl.node];
      grid.policy = grid.node->policy;
    }
    grid.is_gate = decl.is_gate;
    grid.device_extent = decl.device_extent;
    grid.step_known = decl.step_known;
    grid.starts_early = !decl.is_gate && decl.op->starts_early;
    grid.ticket = static_cast<i32>(program.event_elements + decl.ticket_base);
    grid.rank = static_cast<int>(decl.extents.size());
    for (int dim = 0; dim < grid.rank; ++dim) grid.extent[dim] = CompiledExpr(decl.extents[dim]);
    grid.extent_publications = CompileEdges(decl.extent_publications);
    grid.edge_publications = CompileEdges(decl.edge_publications);
    grid.waits = CompileEdges(decl.waits);
    grid.notifies = CompileEdges(decl.notifies);
    grids_.push_back(std::move(grid));
  }
  for (const ProgramEvent& decl : program.events) {
    EVT_CHECK(decl.capacity.size() <= kMaxEventDims);
    Event event;
    event.base = static_cast<i32>(decl.base);
    event.rank = static_cast<i32>(decl.capacity.size());
    int64_t stride = 1;
    for (int dim = event.rank - 1; dim >= 0; --dim) {
      event.stride[dim] = static_cast<i32>(stride);
      stride *= decl.capacity[dim];
    }
    event.target = CompiledExpr(decl.target);
    event.derived = CompiledExpr(decl.derived);
    events_.push_back(std::move(event));
  }
  for (const Expr& dim : program.dims) dims_.emplace_back(dim);
  for (size_t i = 0; i < program.tensors.size(); ++i) {
    const TensorDecl& decl = program.tensors[i];
    Loadable loadable;
    if (decl.published_by >= 0) {
      const absl::StatusOr<int64_t> bytes = CapacityBytes(program, static_cast<int>(i));
      EVT_CHECK(bytes.ok());
      loadable = {addresses[i], *bytes / static_cast<int64_t>(sizeof(int32_t)),
                  static_cast<int32_t>(std::max<int64_t>(decl.min_value, INT32_MIN)),
                  static_cast<int32_t>(std::min<int64_t>(decl.max_value, INT32_MAX))};
    }
    loadable_.push_back(loadable);
  }
}

std::vector<EvaluatedProgram::Edge> EvaluatedProgram::CompileEdges(
    const std::vector<eventide::Edge>& edges) {
  std::vector<Edge> compiled;
  for (const eventide::Edge& decl : edges) {
    EVT_CHECK(decl.index.size() <= kMaxEventDims);
    Edge edge;
    edge.event = decl.event;
    edge.rank = static_cast<i32>(decl.index.size());
    edge.step_wide = true;
    for (int dim = 0; dim < edge.rank; ++dim) {
      const IndexRange& range = decl.index[dim];
      edge.range[dim] = {CompiledExpr(range.low), CompiledExpr(range.high), range.single};
      for (const Expr* expr : {&range.low, &range.high})
        edge.step_wide = edge.step_wide && !expr->HasLayer() && !expr->HasCoord();
    }
    compiled.push_back(std::move(edge));
  }
  return compiled;
}

int32_t EvaluatedProgram::Load(void* self, int tensor, int64_t element) {
  const auto* program = static_cast<const EvaluatedProgram*>(self);
  const Loadable& loadable = program->loadable_[tensor];
  if (element < 0 || element >= loadable.elements) return program->LoadFault(tensor, element, 0);
  const int32_t value = reinterpret_cast<const int32_t*>(loadable.address)[element];
  if (value < loadable.min || value > loadable.max)
    return program->LoadFault(tensor, element, value);
  return value;
}

int32_t EvaluatedProgram::LoadFault(int tensor, int64_t element, int32_t value) const {
  if (!fault_->claimed.exchange(true)) {
    fault_->element = element;
    fault_->value = value;
    fault_->tensor.store(tensor + 1, std::memory_order_release);
  }
  return std::clamp(value, loadable_[tensor].min, loadable_[tensor].max);
}

absl::Status EvaluatedProgram::TakeFault() {
  const int tensor = fault_->tensor.load(std::memory_order_acquire) - 1;
  if (tensor < 0) return absl::OkStatus();
  const TensorDecl& decl = program_->tensors[tensor];
  const absl::Status status = absl::OutOfRangeError(
      absl::StrFormat("%s: tensor %s, element %d held %d when an extent or an edge was read from "
                      "it; declared are %d "
                      "elements in [%d, %d]; the task that writes it is wrong",
                      program_->name, decl.name, fault_->element, fault_->value,
                      loadable_[tensor].elements, decl.min_value, decl.max_value));
  fault_ = std::make_unique<Fault>();
  return status;
}

void EvaluatedProgram::EvaluateDims(StepView& step) const {
  for (size_t i = 0; i < dims_.size(); ++i) step.dims[i] = dims_[i](EnvOf(step, nullptr, 0));
}

}  // namespace eventide
