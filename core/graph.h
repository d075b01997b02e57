// The language in which a model step is written: symbols, tensors, event tensors, sections of
// layers, and task grids whose edges wait on and notify event elements. Nothing here knows a GPU or
// a thread.
//
//   Graph g("pair");
//   Expr rows = g.AddSymbol("rows", 0, 64);
//   TensorId x = g.AddTensor("x", DType::kF32, {rows, 64}, TensorRole::kInput);
//   TensorId y = g.AddTensor("y", DType::kF32, {rows, 64}, TensorRole::kScratch);
//   EventId done = g.AddEvents("y_done", {CeilDiv(rows, 4)});
//   g.Call<Scale>("scale", {Operand(x).Region({At(0)}), Operand(y).Region({At(0)})}, {.factor = 2},
//   {rows})
//       .Notify(done, {At(0) / 4});
//   IndexRange tile(At(0) * 4, Min(At(0) * 4 + 4, rows));
//   g.Call<Sum>("sum", {Operand(y).Region({tile})}, {}, {CeilDiv(rows, 4)}).Wait(done, {At(0)});
//
// Targets are never written: they are derived from the edges (core/targets.h).
#pragma once

#include <cstring>
#include <initializer_list>
#include <string>
#include <type_traits>
#include <vector>

#include "core/dtype.h"
#include "core/expr.h"
#include "core/status.h"
#include "device/op.h"

namespace eventide {

struct TensorId {
  int index = -1;
};
struct EventId {
  int index = -1;
};
struct GridId {
  int index = -1;
};

// Where a tensor lives and who writes it.
enum class TensorRole {
  kWeight,   // constant over steps
  kState,    // survives steps: KV cache, slots
  kInput,    // written by the host before the step
  kScratch,  // written and read inside one step
  kOutput,   // written by the step, read by the host
};

struct SymbolDecl {
  std::string name;
  int64_t min, max;
};

struct TensorDecl {
  std::string name;
  DType dtype;
  std::vector<Expr> shape;  // row-major; a per-layer tensor has the layer count as its first dim
  TensorRole role;
  // For device-resident values (extents, counts, indices): the declared range of every element, and
  // the event whose firing publishes it. Whoever evaluates a Load of this tensor waits for that
  // first.
  int64_t min_value = 0, max_value = 0;
  int published_by = -1;  // EventId, or -1: not usable in a Load
  std::vector<Expr>
      published_index;  // element of it; may use the layer and the Load's own coordinates
};

struct EventDecl {
  std::string name;
  std::vector<Expr> shape;  // over symbols and constants
  int count_tensor = -1;    // the tensor that holds the targets of gather and range edges, or -1
};

// Element indices an edge names in one dim of an event tensor: [low, high); a single index has
// high = low + 1. Affine, gather (a Load) and range (two Loads) edges are all written this way.
struct IndexRange {
  Expr low, high;
  bool single = true;
  IndexRange(Expr index) : low(index), high(index + 1) {}  // NOLINT
  IndexRange(int index) : IndexRange(Expr(index)) {}       // NOLINT
  IndexRange(Expr first, Expr end) : low(first), high(end), single(false) {}
};

struct Edge {
  int event;
  std::vector<IndexRange> index;  // one per dim of the event tensor
};

// A tensor as an op sees it: for per-layer tensors `layer` picks the instance, an affine expression
// of the layer such as Layer(), Layer() + 1 or Layer() * 2 + 1; unset: Layer() if the grid is in a
// layered section and the tensor's first dim is that section's layer count, otherwise the whole
// tensor.
//
// What a task touches in it may be narrowed, for Verify only, to a region: ranges of indices along
// the leading dims (after the layer dim), over symbols, coordinates, the layer and Loads. Without a
// region a task is taken to touch the whole instance, and its grid's other tasks different parts of
// it.
struct Operand {
  int tensor;
  bool indexed = false;
  Expr layer;
  std::vector<IndexRange> region;
  Operand(TensorId id) : tensor(id.index) {}  // NOLINT
  Operand(TensorId id, Expr layer_index) : tensor(id.index), indexed(true), layer(layer_index) {}
  Operand& Region(std::vector<IndexRange> ranges) & {
    region = std::move(ranges);
    return *this;
  }
  Operand Region(std::vector<IndexRange> ranges) && {
    region = std::move(ranges);
    return std::move(*this);
  }
};

struct GridDecl {
  std::string name;
  const OpInfo* op = nullptr;
  int variant = 0;  // which instantiation of the op (dtype, tile class): device/variant.h
  std::vector<Operand> operands;
  std::vector<unsigned char> params;
  std::vector<Expr> extents;  // 1..kMaxCoords
  std::vector<TensorBox> boxes;
  std::vector<Edge> waits, notifies;
  int section = 0;
  bool is_gate = false;  // a gate task (core/gates.h), made by Finish, never by hand
  int gate_of = -1;
};

struct SectionDecl {
  std::string name;
  Expr layers;  // constant; 1 for a section without layers
};

inline Expr At(int coordinate) {
  return Expr::Coord(coordinate);
}
inline Expr Layer() {
  return Expr::Layer();
}

class Graph;

// Lets edges be added where a grid is called.
class GridHandle {
 public:
  GridHandle(Graph* graph, int index) : graph_(graph), index_(index) {}
  GridHandle& Wait(EventId event, std::vector<IndexRange> index);
  GridHandle& Notify(EventId event, std::vector<IndexRange> index);
  GridId id() const { return {index_}; }

 private:
  Graph* graph_;
  int index_;
};

// Mistakes in calls (wrong arity, unknown ids) are remembered and returned by Verify with the name
// of the grid, so that builders read as a list of calls.
class Graph {
 public:
  explicit Graph(std::string name);

  Expr AddSymbol(std::string name, int64_t min, int64_t max);
  // A relation between symbols that holds in every step: `at_least_zero` >= 0, such as tokens -
  // rows.
  void Assume(const Expr& at_least_zero);
  TensorId AddTensor(std::string name, DType dtype, std::vector<Expr> shape, TensorRole role);
  // A tensor of i32 whose values the device decides, published by an element of `event`.
  TensorId AddPublished(std::string name, std::vector<Expr> shape, int64_t min_value,
                        int64_t max_value, EventId event, std::vector<Expr> event_index);
  EventId AddEvents(std::string name, std::vector<Expr> shape);
  // Targets that no closed form gives (gather and range edges): read from `counts`, one per
  // element.
  void SetCounts(EventId event, TensorId counts);
  // Device-resident value: counts.Load(...) in extents and edges.
  Expr Load(TensorId tensor, std::vector<Expr> index);
  // Grids called afterwards belong to this section and run once per layer, in order.
  void BeginSection(std::string name, int64_t layers);
  // A dim an op reads at run time (device/op.h): constants stay constants.
  DimRef Dim(const Expr& expr);

  template <class Op>
  GridHandle Call(std::string name, std::vector<Operand> operands,
                  const typename Op::Params& params, std::vector<Expr> extents, int variant = 0) {
    static_assert(std::is_trivially_copyable_v<typename Op::Params>);
    static_assert(sizeof(typename Op::Params) <= kMaxParamBytes);
    std::vector<unsigned char> bytes(sizeof(params));
    std::memcpy(bytes.data(), &params, sizeof(params));
    std::vector<TensorBox> boxes;
    if constexpr (requires { Op::kBoxes; }) {
      for (i32 i = 0; i < Op::kBoxes; ++i) boxes.push_back(Op::BoxOf(params, i, kBoxedElementBytes));
    }
    return CallOp(std::move(name), &Op::kInfo, variant, std::move(operands), std::move(bytes),
                  std::move(extents), std::move(boxes));
  }

  const std::string& name() const { return name_; }
  const std::vector<SymbolDecl>& symbols() const { return symbols_; }
  const std::vector<TensorDecl>& tensors() const { return tensors_; }
  const std::vector<EventDecl>& events() const { return events_; }
  const std::vector<SectionDecl>& sections() const { return sections_; }
  const std::vector<GridDecl>& grids() const { return grids_; }
  const std::vector<Expr>& dims() const { return dims_; }
  const std::vector<Expr>& assumptions() const { return assumptions_; }
  const std::vector<absl::Status>& mistakes() const { return mistakes_; }

 private:
  friend class GridHandle;
  GridHandle CallOp(std::string name, const OpInfo* op, int variant, std::vector<Operand> operands,
                    std::vector<unsigned char> params, std::vector<Expr> extents,
                    std::vector<TensorBox> boxes);

  std::string name_;
  std::vector<SymbolDecl> symbols_;
  std::vector<TensorDecl> tensors_;
  std::vector<EventDecl> events_;
  std::vector<SectionDecl> sections_;
  std::vector<GridDecl> grids_;
  std::vector<Expr> dims_;
  std::vector<Expr> assumptions_;
  std::vector<absl::Status> mistakes_;
};

}  // namespace eventide
