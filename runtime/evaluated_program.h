// A program as the worker loop wants it (the P of device/loop.h), by evaluating the program's
// expressions: what the CPU backend and the simulator run, without a compiler. Immutable while a
// step runs.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "core/program.h"
#include "device/event.h"
#include "runtime/op_table.h"

namespace eventide {

// Everything but the ops' parts.
class EvaluatedProgram {
 public:
  // `nodes` are BuildNodes(); `addresses` of tensors are read by Loads. The program must outlive
  // this.
  EvaluatedProgram(const Program& program, std::vector<Node> nodes,
                   absl::Span<const uint64_t> addresses);

  // Negative control of tests: gates do nothing and elements without arrivals are open at once.
  void SetZeroIsOpen(bool value) { zero_is_open_ = value; }

  int Sections() const { return static_cast<int>(program_->sections.size()); }
  i32 Layers(int section) const { return static_cast<i32>(program_->sections[section].layers); }
  int FirstGrid(int section) const { return program_->sections[section].first_grid; }
  int GridCount(int section) const { return program_->sections[section].grid_count; }

  bool IsGate(int grid) const { return grids_[grid].is_gate; }
  bool DeviceExtent(int grid) const { return grids_[grid].device_extent; }
  bool StepKnown(int grid) const { return grids_[grid].step_known; }
  bool StartsEarly(int grid) const { return grids_[grid].starts_early; }
  u32 Policy(int grid) const { return grids_[grid].policy; }
  const Node& NodeOf(int grid) const { return *grids_[grid].node; }
  i32 Ticket(int grid, i32 layer) const { return grids_[grid].ticket + layer; }

  i32 Extent(const StepView& step, int grid, i32 layer, int dim) const {
    const Grid& g = grids_[grid];
    if (dim >= g.rank) return 1;
    return Max(0, g.extent[dim](EnvOf(step, nullptr, layer)));
  }

  int Publications(int grid) const {
    return static_cast<int>(grids_[grid].extent_publications.size());
  }
  ElementBox Publication(const StepView& step, int grid, i32 layer, int i) const {
    return Box(grids_[grid].extent_publications[i], EnvOf(step, nullptr, layer));
  }
  bool StepWide(int grid, int i) const { return grids_[grid].extent_publications[i].step_wide; }
  int EdgePublications(int grid) const {
    return static_cast<int>(grids_[grid].edge_publications.size());
  }
  ElementBox EdgePublication(const StepView& step, int grid, const Coord& at, int i) const {
    return Box(grids_[grid].edge_publications[i], EnvOf(step, at.at, at.layer));
  }
  int Waits(int grid) const { return static_cast<int>(grids_[grid].waits.size()); }
  ElementBox WaitBox(const StepView& step, int grid, const Coord& at, int i) const {
    return Box(grids_[grid].waits[i], EnvOf(step, at.at, at.layer));
  }
  int Notifies(int grid) const {
    if (zero_is_open_ && grids_[grid].is_gate) return 0;
    return static_cast<int>(grids_[grid].notifies.size());
  }
  ElementBox NotifyBox(const StepView& step, int grid, const Coord& at, int i) const {
    return Box(grids_[grid].notifies[i], EnvOf(step, at.at, at.layer));
  }

  i32 Element(int event, const i32 (&index)[kMaxEventDims]) const {
    const Event& e = events_[event];
    i32 element = e.base;
    for (int dim = 0; dim < e.rank; ++dim) element += index[dim] * e.stride[dim];
    return element;
  }
  i32 Target(const StepView& step, int event, const i32 (&index)[kMaxEventDims]) const {
    const Event& e = events_[event];
    return (zero_is_open_ ? e.derived : e.target)(EnvOf(step, index, 0));
  }
  i32 Derived(const StepView& step, int event, const i32 (&index)[kMaxEventDims]) const {
    return events_[event].derived(EnvOf(step, index, 0));
  }

  // The step's derived dims, from its symbols.
  void EvaluateDims(StepView& step) const;
  // The value a Load read outside its tensor's declared range or size, if any did since the last
  // call; such a value is replaced by the nearest one in range, so that nothing is overrun.
  absl::Status TakeFault();

  const Program& program() const { return *program_; }
  const std::vector<Node>& nodes() const { return nodes_; }

 protected:
  struct Range {
    CompiledExpr low, high;
    bool single = true;
  };
  struct Edge {
    i32 event = 0, rank = 0;
    bool step_wide = false;  // names the same elements for every layer and task
    Range range[kMaxEventDims];
  };
  struct Grid {
    const Node* node = nullptr;  // null for a gate
    u32 policy = kPolicyStatic;
    bool is_gate = false, device_extent = false, step_known = false, starts_early = false;
    i32 ticket = 0;
    int rank = 0;
    CompiledExpr extent[kMaxCoords];
    std::vector<Edge> extent_publications, edge_publications, waits, notifies;
  };
  struct Event {
    i32 base = 0, rank = 0;
    i32 stride[kMaxEventDims] = {};
    CompiledExpr target, derived;
  };
  struct Loadable {
    uint64_t address = 0;
    int64_t elements = 0;
    int32_t min = 0, max = 0;
  };

  static std::vector<Edge> CompileEdges(const std::vector<eventide::Edge>& edges);
  static int32_t Load(void* self, int tensor, int64_t element);
  int32_t LoadFault(int tensor, int64_t element, int32_t value) const;

  CompiledExpr::Env EnvOf(const StepView& step, const i32* coords, i32 layer) const {
    return {step.symbols, coords, layer, &Load, const_cast<EvaluatedProgram*>(this)};
  }
  static ElementBox Box(const Edge& edge, const CompiledExpr::Env& env) {
    ElementBox box{edge.event, {}, {1, 1, 1, 1}};
    for (int dim = 0; dim < edge.rank; ++dim) {
      box.low[dim] = edge.range[dim].low(env);
      if (!edge.range[dim].single)
        box.count[dim] = Max(0, edge.range[dim].high(env) - box.low[dim]);
    }
    return box;
  }

  const Program* program_;
  std::vector<Node> nodes_;
  std::vector<Grid> grids_;
  std::vector<Event> events_;
  std::vector<CompiledExpr> dims_;
  std::vector<Loadable> loadable_;
  bool zero_is_open_ = false;
  // First Load that misbehaved: tensor + 1, element, value. Written by the winner of `claimed`.
  struct Fault {
    std::atomic<int> tensor{0};
    std::atomic<bool> claimed{false};
    int64_t element = 0;
    int32_t value = 0;
  };
  std::unique_ptr<Fault> fault_ = std::make_unique<Fault>();
};

// With the ops' parts for workers of type W (or derived from W).
template <class W>
class RunnableProgram : public EvaluatedProgram {
 public:
  using EvaluatedProgram::EvaluatedProgram;

  // Finds every kind's functions; an error names the op that has none.
  absl::Status Bind(const OpTable<W>& table) {
    functions_.clear();
    for (const ProgramGrid& grid : program_->grids) {
      OpFunctions<W> functions;
      if (!grid.is_gate) {
        const OpFunctions<W>* found = table.Find(grid.op->name, grid.variant);
        if (found == nullptr) {
          return absl::UnimplementedError(absl::StrCat(
              program_->name, ", grid ", grid.name, ": this binary has no op ", grid.op->name,
              " for variant ", grid.variant, "; ops are the headers of ops/"));
        }
        functions = *found;
      }
      functions_.push_back(functions);
    }
    return absl::OkStatus();
  }

  bool HasStream(int grid) const { return functions_[grid].stream != nullptr; }
  void Stream(W& w, const StepView& step, int grid, const Coord& at) const {
    functions_[grid].stream(w, step, NodeOf(grid), at);
  }
  void Input(W& w, const StepView& step, int grid, const Coord& at) const {
    if (functions_[grid].input != nullptr) functions_[grid].input(w, step, NodeOf(grid), at);
  }
  void Compute(W& w, const StepView& step, int grid, const Coord& at) const {
    functions_[grid].compute(w, step, NodeOf(grid), at);
  }

 private:
  std::vector<OpFunctions<W>> functions_;  // by grid
};

}  // namespace eventide
