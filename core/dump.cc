#include "core/dump.h"

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "core/names.h"

namespace eventide {
namespace {

const char* RoleName(TensorRole role) {
  switch (role) {
    case TensorRole::kWeight:
      return "weight";
    case TensorRole::kState:
      return "state";
    case TensorRole::kInput:
      return "input";
    case TensorRole::kScratch:
      return "scratch";
    case TensorRole::kOutput:
      return "output";
  }
  return "?";
}

const char* ModeName(OperandMode mode) {
  return mode == kRead ? "in" : mode == kWrite ? "out" : "inout";
}

std::string EventName(const Program& program, int event) {
  return program.events[event].name;
}
std::string EventName(const Graph& graph, int event) {
  return graph.events()[event].name;
}

void AddSymbols(const std::vector<SymbolDecl>& symbols, std::string& out) {
  for (const SymbolDecl& symbol : symbols)
    absl::StrAppendFormat(&out, "symbol %s in [%d, %d]\n", symbol.name, symbol.min, symbol.max);
}

template <class Source>
void AddTensors(const Source& source, const Names& names, const std::vector<TensorDecl>& tensors,
                std::string& out) {
  for (const TensorDecl& tensor : tensors) {
    absl::StrAppendFormat(&out, "tensor %s %s %s %s", tensor.name, DTypeName(tensor.dtype),
                          ShapeText(names, tensor.shape), RoleName(tensor.role));
    if (tensor.published_by >= 0) {
      absl::StrAppendFormat(&out, " in [%d, %d] published by %s%s", tensor.min_value,
                            tensor.max_value, EventName(source, tensor.published_by),
                            ShapeText({names.symbols, names.tensors, 'i'}, tensor.published_index));
    }
    out += "\n";
  }
}

template <class Source>
void AddEdges(const Source& source, const Names& names, const char* verb,
              const std::vector<Edge>& edges, std::string& out) {
  for (const Edge& edge : edges) {
    absl::StrAppendFormat(&out, "    %s %s%s\n", verb, EventName(source, edge.event),
                          IndexText(names, edge.index));
  }
}

template <class Grid>
void AddOperands(const Names& names, const Grid& grid, std::string& out) {
  for (size_t i = 0; i < grid.operands.size(); ++i) {
    const Operand& operand = grid.operands[i];
    const OperandInfo& info = grid.op->operands[i];
    absl::StrAppendFormat(&out, "    %s %s = %s", ModeName(info.mode), info.name,
                          (*names.tensors)[operand.tensor].name);
    if (operand.indexed) absl::StrAppend(&out, " of layer ", ExprText(names, operand.layer));
    if (!operand.region.empty())
      absl::StrAppend(&out, " region ", IndexText(names, operand.region));
    out += "\n";
  }
}

// For DOT strings.
std::string Quoted(const std::string& text) {
  return absl::StrCat("\"", absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"\"", "\\\""}}), "\"");
}

}  // namespace

std::string DumpText(const Graph& graph) {
  const Names names = {&graph.symbols(), &graph.tensors(), 't'};
  std::string out = absl::StrFormat("graph %s\n", graph.name());
  AddSymbols(graph.symbols(), out);
  for (const Expr& assumption : graph.assumptions())
    absl::StrAppendFormat(&out, "assume %s >= 0\n", ExprText(names, assumption));
  AddTensors(graph, names, graph.tensors(), out);
  for (const EventDecl& event : graph.events()) {
    absl::StrAppendFormat(&out, "event %s %s", event.name, ShapeText(names, event.shape));
    if (event.count_tensor >= 0)
      absl::StrAppend(&out, " counts ", graph.tensors()[event.count_tensor].name);
    out += "\n";
  }
  int section = -1;
  for (const GridDecl& grid : graph.grids()) {
    if (grid.section != section) {
      section = grid.section;
      absl::StrAppendFormat(&out, "section %s x %s\n", graph.sections()[section].name,
                            ExprText(names, graph.sections()[section].layers));
    }
    absl::StrAppendFormat(&out, "  grid %s = %s.%d %s\n", grid.name, grid.op->name, grid.variant,
                          ShapeText(names, grid.extents));
    AddOperands(names, grid, out);
    AddEdges(graph, names, "wait", grid.waits, out);
    AddEdges(graph, names, "notify", grid.notifies, out);
  }
  return out;
}

std::string DumpText(const Program& program) {
  const Names names = {&program.symbols, &program.tensors, 't'};
  const Names elements = {&program.symbols, &program.tensors, 'e'};
  std::string out = absl::StrFormat("program %s\n", program.name);
  AddSymbols(program.symbols, out);
  for (size_t i = 0; i < program.dims.size(); ++i)
    absl::StrAppendFormat(&out, "dim %d = %s\n", i, ExprText(names, program.dims[i]));
  AddTensors(program, names, program.tensors, out);
  for (const ProgramEvent& event : program.events) {
    absl::StrAppendFormat(&out, "event %s %s at %d..%d target %s%s\n", event.name,
                          ShapeText(names, event.shape), event.base, event.base + event.elements,
                          ExprText(elements, event.target), event.gated ? " (gated)" : "");
  }
  for (size_t i = 0; i < program.kinds.size(); ++i)
    absl::StrAppendFormat(&out, "kind %d = %s.%d\n", i, program.kinds[i].op->name,
                          program.kinds[i].variant);
  for (const ProgramSection& section : program.sections) {
    absl::StrAppendFormat(&out, "section %s x %d\n", section.name, section.layers);
    for (int g = section.first_grid; g < section.first_grid + section.grid_count; ++g) {
      const ProgramGrid& grid = program.grids[g];
      if (grid.is_gate) {
        absl::StrAppendFormat(&out, "  gate %s\n", grid.name);
      } else {
        absl::StrAppendFormat(&out, "  grid %s = kind %d node %d %s%s\n", grid.name, grid.kind,
                              grid.node, ShapeText(names, grid.extents),
                              grid.device_extent ? " (device)" : "");
        AddOperands(names, grid, out);
      }
      AddEdges(program, names, "extents need", grid.extent_publications, out);
      AddEdges(program, names, "edges need", grid.edge_publications, out);
      AddEdges(program, names, "wait", grid.waits, out);
      AddEdges(program, names, "notify", grid.notifies, out);
    }
  }
  absl::StrAppendFormat(&out, "bank: %d event elements, %d ticket counters, %d bytes\n",
                        program.event_elements, program.ticket_counters, program.BankBytes());
  return out;
}

std::string DumpDot(const Program& program) {
  const Names names = {&program.symbols, &program.tensors, 't'};
  const Names elements = {&program.symbols, &program.tensors, 'e'};
  std::string out = absl::StrFormat("digraph %s {\n  rankdir=LR;\n", Quoted(program.name));
  for (const ProgramEvent& event : program.events) {
    absl::StrAppendFormat(&out, "  %s [shape=ellipse, label=%s];\n", Quoted("event " + event.name),
                          Quoted(absl::StrCat(event.name, ShapeText(names, event.shape), " target ",
                                              ExprText(elements, event.target))));
  }
  for (size_t s = 0; s < program.sections.size(); ++s) {
    const ProgramSection& section = program.sections[s];
    absl::StrAppendFormat(&out, "  subgraph cluster_%d {\n    label=%s;\n", s,
                          Quoted(absl::StrCat(section.name, " x ", section.layers)));
    for (int g = section.first_grid; g < section.first_grid + section.grid_count; ++g) {
      const ProgramGrid& grid = program.grids[g];
      absl::StrAppendFormat(&out, "    %s [shape=%s, label=%s];\n", Quoted("grid " + grid.name),
                            grid.is_gate ? "diamond" : "box",
                            Quoted(absl::StrCat(grid.name, ShapeText(names, grid.extents))));
    }
    out += "  }\n";
  }
  for (const ProgramGrid& grid : program.grids) {
    const std::string box = Quoted("grid " + grid.name);
    const auto from_event = [&](const std::vector<Edge>& edges, const char* style) {
      for (const Edge& edge : edges) {
        absl::StrAppendFormat(&out, "  %s -> %s [label=%s%s];\n",
                              Quoted("event " + program.events[edge.event].name), box,
                              Quoted(IndexText(names, edge.index)), style);
      }
    };
    from_event(grid.extent_publications, ", style=dashed");
    from_event(grid.edge_publications, ", style=dashed");
    from_event(grid.waits, "");
    for (const Edge& edge : grid.notifies) {
      absl::StrAppendFormat(&out, "  %s -> %s [label=%s];\n", box,
                            Quoted("event " + program.events[edge.event].name),
                            Quoted(IndexText(names, edge.index)));
    }
  }
  out += "}\n";
  return out;
}

}  // namespace eventide
