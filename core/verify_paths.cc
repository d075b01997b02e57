// Refusals about paths between grids, whatever their tasks: what graphs with device-resident edges
// are checked for even where their tasks cannot be enumerated.
#include <algorithm>

#include "absl/strings/str_format.h"
#include "core/verify.h"

namespace eventide {
namespace {

using Reach = std::vector<std::vector<bool>>;

bool Names(const std::vector<Edge>& edges, int event) {
  return std::any_of(edges.begin(), edges.end(),
                     [&](const Edge& edge) { return edge.event == event; });
}

// reach[a][b]: some chain of events leads from grid a to grid b.
Reach Closure(const Program& program) {
  const size_t count = program.grids.size();
  Reach reach(count, std::vector<bool>(count, false));
  for (size_t a = 0; a < count; ++a) {
    for (const Edge& edge : program.grids[a].notifies) {
      for (size_t b = 0; b < count; ++b) {
        const ProgramGrid& to = program.grids[b];
        if (Names(to.waits, edge.event) || Names(to.extent_publications, edge.event) ||
            Names(to.edge_publications, edge.event))
          reach[a][b] = true;
      }
    }
  }
  for (size_t via = 0; via < count; ++via) {
    for (size_t a = 0; a < count; ++a) {
      if (!reach[a][via]) continue;
      for (size_t b = 0; b < count; ++b)
        if (reach[via][b]) reach[a][b] = true;
    }
  }
  return reach;
}

bool Touches(const ProgramGrid& grid, size_t operand, bool writes) {
  const OperandMode mode = grid.op->operands[operand].mode;
  return writes ? mode != kRead : mode != kWrite;
}

bool Writes(const ProgramGrid& grid, int tensor) {
  for (size_t i = 0; i < grid.operands.size(); ++i) {
    if (grid.operands[i].tensor == tensor && Touches(grid, i, true)) return true;
  }
  return false;
}

absl::Status CheckRead(const Program& program, const Reach& reach, size_t reader, int tensor) {
  const TensorDecl& decl = program.tensors[tensor];
  if (decl.role != TensorRole::kScratch && decl.role != TensorRole::kOutput)
    return absl::OkStatus();
  size_t writer = program.grids.size();
  for (size_t w = 0; w < program.grids.size(); ++w) {
    if (!Writes(program.grids[w], tensor)) continue;
    if (w == reader || reach[w][reader]) return absl::OkStatus();
    writer = w;
  }
  if (writer == program.grids.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "grid %s reads tensor %s with no event path from any grid that writes it (%s)",
      program.grids[reader].name, decl.name, program.grids[writer].name));
}

// Everyone who writes a published tensor is ordered before the event that publishes it fires.
absl::Status CheckPublication(const Program& program, const Reach& reach, int tensor) {
  const TensorDecl& decl = program.tensors[tensor];
  for (size_t w = 0; w < program.grids.size(); ++w) {
    if (!Writes(program.grids[w], tensor)) continue;
    bool covered = false;
    for (size_t n = 0; n < program.grids.size(); ++n) {
      if (Names(program.grids[n].notifies, decl.published_by)) covered |= n == w || reach[w][n];
    }
    if (!covered) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "tensor %s is loaded before its publication: grid %s writes it, but neither notifies "
          "event %s "
          "nor comes before a grid that does",
          decl.name, program.grids[w].name, program.events[decl.published_by].name));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status VerifyPaths(const Program& program) {
  const Reach reach = Closure(program);
  for (size_t g = 0; g < program.grids.size(); ++g) {
    const ProgramGrid& grid = program.grids[g];
    for (size_t i = 0; i < grid.operands.size(); ++i) {
      if (Touches(grid, i, false) && !Touches(grid, i, true))
        RETURN_IF_ERROR(CheckRead(program, reach, g, grid.operands[i].tensor));
    }
  }
  for (size_t t = 0; t < program.tensors.size(); ++t) {
    if (program.tensors[t].published_by >= 0)
      RETURN_IF_ERROR(CheckPublication(program, reach, static_cast<int>(t)));
  }
  return absl::OkStatus();
}

}  // namespace eventide
