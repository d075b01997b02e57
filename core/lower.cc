// From a graph to its program: targets, linear order, kinds, numbers.
#include "absl/strings/str_format.h"
#include "core/gates.h"
#include "core/program.h"
#include "core/publications.h"
#include "core/targets.h"
#include "core/verify.h"

namespace eventide {
namespace {

absl::Status LowerEvents(const Graph& graph, Program& program) {
  for (size_t i = 0; i < graph.events().size(); ++i) {
    const EventDecl& decl = graph.events()[i];
    ProgramEvent event;
    event.name = decl.name;
    event.shape = decl.shape;
    event.base = program.event_elements;
    event.elements = 1;
    for (const Expr& dim : decl.shape) {
      const Interval bound =
          Bound(dim, {[&](const Expr& leaf) { return LeafBounds(graph, leaf); }});
      event.capacity.push_back(bound.high);
      event.elements = SaturatingMul(event.elements, bound.high);
    }
    program.event_elements = SaturatingAdd(program.event_elements, event.elements);
    if (program.event_elements > INT32_MAX) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "event %s: with it the counter bank has more than 2^31 elements", decl.name));
    }
    ASSIGN_OR_RETURN(event.derived, DeriveTarget(graph, static_cast<int>(i)));
    event.target = event.derived;
    program.events.push_back(std::move(event));
  }
  return absl::OkStatus();
}

// Spells out the rule of core/graph.h: in a layered section a tensor whose first dim is the layer
// count is seen one layer at a time.
Operand WithLayer(const Graph& graph, int64_t layers, Operand operand) {
  const TensorDecl& tensor = graph.tensors()[operand.tensor];
  if (operand.indexed || layers == 1 || tensor.shape.empty()) return operand;
  if (tensor.shape[0].AsConstant() != layers) return operand;
  operand.indexed = true;
  operand.layer = Expr::Layer();
  return operand;
}

void LowerGrids(const Graph& graph, Program& program) {
  for (size_t section = 0; section < graph.sections().size(); ++section) {
    ProgramSection lowered;
    lowered.name = graph.sections()[section].name;
    lowered.layers = graph.sections()[section].layers.constant();
    lowered.first_grid = static_cast<int>(program.grids.size());
    for (const GridDecl& decl : graph.grids()) {
      if (decl.section != static_cast<int>(section)) continue;
      ProgramGrid grid;
      grid.name = decl.name;
      grid.op = decl.op;
      grid.variant = decl.variant;
      grid.section = decl.section;
      grid.extents = decl.extents;
      for (const Expr& extent : decl.extents) {
        grid.device_extent |= extent.HasLoad();
        grid.step_known &= !extent.HasLoad() && !extent.HasLayer();
      }
      grid.waits = decl.waits;
      grid.notifies = decl.notifies;
      for (const Operand& operand : decl.operands)
        grid.operands.push_back(WithLayer(graph, lowered.layers, operand));
      grid.params = decl.params;
      grid.boxes = decl.boxes;
      program.grids.push_back(std::move(grid));
    }
    lowered.grid_count = static_cast<int>(program.grids.size()) - lowered.first_grid;
    program.sections.push_back(std::move(lowered));
  }
}

void Number(Program& program) {
  int nodes = 0;
  for (ProgramGrid& grid : program.grids) {
    grid.ticket_base = program.ticket_counters;
    program.ticket_counters += program.sections[grid.section].layers;
    if (grid.is_gate) continue;
    grid.node = nodes++;
    for (size_t kind = 0; kind < program.kinds.size() && grid.kind < 0; ++kind) {
      if (program.kinds[kind].op == grid.op && program.kinds[kind].variant == grid.variant)
        grid.kind = static_cast<int>(kind);
    }
    if (grid.kind < 0) {
      grid.kind = static_cast<int>(program.kinds.size());
      program.kinds.push_back({grid.op, grid.variant});
    }
  }
}

absl::StatusOr<Program> Build(const Graph& graph) {
  Program program;
  program.name = graph.name();
  program.symbols = graph.symbols();
  program.assumptions = graph.assumptions();
  program.dims = graph.dims();
  program.tensors = graph.tensors();
  RETURN_IF_ERROR(LowerEvents(graph, program));
  LowerGrids(graph, program);
  RETURN_IF_ERROR(AddPublications(graph, program));
  RETURN_IF_ERROR(AddGates(graph, program));
  // Once more: gates, and targets changed by them, have publications too.
  RETURN_IF_ERROR(AddPublications(graph, program));
  Number(program);
  return program;
}

}  // namespace

absl::StatusOr<Program> Lower(const Graph& graph, const VerifyOptions& options) {
  RETURN_IF_ERROR(VerifyDeclarations(graph));
  RETURN_IF_ERROR(VerifyExpressions(graph));
  RETURN_IF_ERROR(VerifyEdges(graph));
  RETURN_IF_ERROR(VerifyFloors(graph, options.pool_pages));
  ASSIGN_OR_RETURN(Program program, Build(graph));
  RETURN_IF_ERROR(VerifyPaths(program));
  RETURN_IF_ERROR(VerifyTasks(graph, program, options));
  return program;
}

absl::StatusOr<Program> Lower(const Graph& graph) {
  return Lower(graph, VerifyOptions());
}

absl::Status Verify(const Graph& graph, const VerifyOptions& options) {
  return Lower(graph, options).status();
}

}  // namespace eventide
