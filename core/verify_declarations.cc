// Refusals that names, roles and counts decide.
#include <set>

#include "absl/strings/str_format.h"
#include "core/verify.h"

namespace eventide {
namespace {

template <class Decls>
absl::Status UniqueNames(const char* what, const Decls& decls) {
  std::set<std::string> names;
  for (const auto& decl : decls) {
    if (decl.name.empty())
      return absl::InvalidArgumentError(absl::StrFormat("a %s has no name", what));
    if (!names.insert(decl.name).second) {
      return absl::InvalidArgumentError(
          absl::StrFormat("two %ss are called %s; give them different names", what, decl.name));
    }
  }
  return absl::OkStatus();
}

const char* WhyNotWritten(TensorRole role) {
  switch (role) {
    case TensorRole::kWeight:
      return "weights are constant over steps";
    case TensorRole::kInput:
      return "inputs are written by the host before the step";
    default:
      return nullptr;
  }
}

absl::Status CheckOperands(const Graph& graph, const GridDecl& grid) {
  for (size_t i = 0; i < grid.operands.size(); ++i) {
    const Operand& operand = grid.operands[i];
    if (operand.tensor < 0 || operand.tensor >= static_cast<int>(graph.tensors().size())) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "grid %s: operand %s is no tensor of this graph", grid.name, grid.op->operands[i].name));
    }
    const TensorDecl& tensor = graph.tensors()[operand.tensor];
    if (grid.op->operands[i].mode == kRead) continue;
    if (const char* why = WhyNotWritten(tensor.role)) {
      return absl::InvalidArgumentError(absl::StrFormat("grid %s writes tensor %s (operand %s): %s",
                                                        grid.name, tensor.name,
                                                        grid.op->operands[i].name, why));
    }
  }
  return absl::OkStatus();
}

// Scratch and outputs that are read must be written, and earlier.
absl::Status CheckWritten(const Graph& graph) {
  std::set<int> written;
  for (const GridDecl& grid : graph.grids()) {
    for (size_t i = 0; i < grid.operands.size(); ++i) {
      if (grid.op->operands[i].mode != kRead) written.insert(grid.operands[i].tensor);
    }
  }
  for (const GridDecl& grid : graph.grids()) {
    for (size_t i = 0; i < grid.operands.size(); ++i) {
      const TensorDecl& tensor = graph.tensors()[grid.operands[i].tensor];
      const bool needs = tensor.role == TensorRole::kScratch || tensor.role == TensorRole::kOutput;
      if (needs && grid.op->operands[i].mode == kRead && !written.count(grid.operands[i].tensor)) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "grid %s reads tensor %s, which nobody writes", grid.name, tensor.name));
      }
    }
  }
  for (size_t i = 0; i < graph.tensors().size(); ++i) {
    const TensorDecl& tensor = graph.tensors()[i];
    if (tensor.published_by >= 0 && !written.count(static_cast<int>(i))) {
      return absl::InvalidArgumentError(
          absl::StrFormat("tensor %s is published by event %s, but no grid writes it", tensor.name,
                          graph.events()[tensor.published_by].name));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status VerifyDeclarations(const Graph& graph) {
  if (!graph.mistakes().empty()) return graph.mistakes().front();
  RETURN_IF_ERROR(UniqueNames("symbol", graph.symbols()));
  RETURN_IF_ERROR(UniqueNames("tensor", graph.tensors()));
  RETURN_IF_ERROR(UniqueNames("event", graph.events()));
  RETURN_IF_ERROR(UniqueNames("section", graph.sections()));
  RETURN_IF_ERROR(UniqueNames("grid", graph.grids()));
  if (graph.grids().empty())
    return absl::InvalidArgumentError(absl::StrFormat("graph %s has no grids", graph.name()));
  for (const EventDecl& event : graph.events()) {
    if (event.shape.empty() || event.shape.size() > kMaxEventDims) {
      return absl::InvalidArgumentError(
          absl::StrFormat("event %s has %d dims; an event has 1 to %d", event.name,
                          event.shape.size(), kMaxEventDims));
    }
  }
  for (const GridDecl& grid : graph.grids()) RETURN_IF_ERROR(CheckOperands(graph, grid));
  return CheckWritten(graph);
}

absl::Status VerifyFloors(const Graph& graph, int pool_pages) {
  const GridDecl* stream = nullptr;
  const GridDecl* input = nullptr;
  for (const GridDecl& grid : graph.grids()) {
    if (grid.op->stream_floor < 0 || grid.op->input_floor < 0) {
      return absl::InvalidArgumentError(
          absl::StrFormat("grid %s: op %s has a negative page floor", grid.name, grid.op->name));
    }
    if (!stream || grid.op->stream_floor > stream->op->stream_floor) stream = &grid;
    if (!input || grid.op->input_floor > input->op->input_floor) input = &grid;
  }
  if (pool_pages == 0 || !stream) return absl::OkStatus();
  // The two lanes serve different tasks at the same time: each must always be able to hold its
  // floor.
  const int floors = stream->op->stream_floor + input->op->input_floor;
  if (floors > pool_pages) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "grid %s (op %s) needs %d pages in the stream lane and grid %s (op %s) needs %d in the "
        "input "
        "lane: page floors of %d exceed the pool of %d, so that page allocation could deadlock",
        stream->name, stream->op->name, stream->op->stream_floor, input->name, input->op->name,
        input->op->input_floor, floors, pool_pages));
  }
  return absl::OkStatus();
}

}  // namespace eventide
