// The lowered form of a graph: linear order, event elements with bases in the counter bank, derived
// targets, gates, kinds and node records (without addresses). What codegen prints, what the CPU
// backend and the simulator evaluate.
#pragma once

#include <string>
#include <vector>

#include "core/graph.h"

namespace eventide {

struct ProgramEvent {
  std::string name;
  std::vector<Expr> shape;        // over symbols; at most kMaxEventDims
  std::vector<int64_t> capacity;  // the shape at the symbols' maxima: strides in the bank
  int64_t base = 0;               // first element in the bank
  int64_t elements = 0;           // product of capacity
  // Both over Coord (the element's index), symbols, Loads. `derived` counts the arrivals of
  // ordinary tasks. Waiters compare with `target`: the same where no gate may stand in, and
  // otherwise, where `derived` is 0, the number of gate tasks that name the element (nearly always
  // 1).
  Expr derived, target;
  bool gated = false;  // a gate notifies it
};

struct ProgramGrid {
  std::string name;
  const OpInfo* op = nullptr;  // null for a gate
  int variant = 0;
  int kind = -1;  // index into Program::kinds; -1 for a gate
  int node = -1;  // index of the node record; -1 for a gate
  int section = 0;
  std::vector<Expr> extents;   // over symbols, layer, Loads
  bool device_extent = false;  // an extent has a Load
  bool step_known = true;      // extents are the same in all layers, and none has a Load
  std::vector<Edge> waits, notifies;
  // Publications to wait for before extents, or edge indices and the targets of waited elements,
  // may be evaluated (Loads): event elements over the layer only (extents), and over task
  // coordinates (edges). In this order: evaluating a later one may need an earlier one.
  std::vector<Edge> extent_publications, edge_publications;
  // A gate has one task per layer and no op. It waits like any task, then arrives once on each
  // element in its notify ranges whose `derived` target is 0, and on no other.
  bool is_gate = false;
  int gate_of = -1;
  std::vector<Operand> operands;  // per-layer tensors have their layer index spelled out
  std::vector<unsigned char> params;
  std::vector<TensorBox> boxes;  // pages that targets with tensor maps copy at once
  int64_t ticket_base = 0;  // first ticket counter of this grid (one per layer)
};

struct ProgramSection {
  std::string name;
  int64_t layers = 1;
  int first_grid = 0, grid_count = 0;  // grids of a section are contiguous in Program::grids
};

// Grids that share one body: same op, same variant.
struct ProgramKind {
  const OpInfo* op;
  int variant;
};

struct Program {
  std::string name;
  std::vector<SymbolDecl> symbols;
  std::vector<Expr> assumptions;  // over symbols; all >= 0 in every step
  std::vector<Expr> dims;         // derived dims, in DimRef order, over symbols only
  std::vector<TensorDecl> tensors;
  std::vector<ProgramEvent> events;
  std::vector<ProgramSection> sections;
  // Linear order: sections in order, within a section layer by layer, within a layer grid by grid,
  // within a grid its tasks row-major, the last coordinate running fastest.
  std::vector<ProgramGrid> grids;
  std::vector<ProgramKind> kinds;
  int64_t event_elements = 0;   // of one bank
  int64_t ticket_counters = 0;  // of one bank, after the event elements

  int64_t BankBytes() const;  // (event_elements + ticket_counters) * kEventStrideBytes
};

// Verifies, derives targets, adds gates, orders, numbers. The error is Verify's.
struct VerifyOptions;  // core/verify.h
absl::StatusOr<Program> Lower(const Graph& graph, const VerifyOptions& options);
absl::StatusOr<Program> Lower(const Graph& graph);

// Bytes of a tensor at the symbols' maxima, and one layer's part of it.
absl::StatusOr<int64_t> CapacityBytes(const Program& program, int tensor);

}  // namespace eventide
