#include "core/graph.h"

#include "absl/strings/str_format.h"

namespace eventide {

GridHandle& GridHandle::Wait(EventId event, std::vector<IndexRange> index) {
  graph_->grids_[index_].waits.push_back({event.index, std::move(index)});
  return *this;
}

GridHandle& GridHandle::Notify(EventId event, std::vector<IndexRange> index) {
  graph_->grids_[index_].notifies.push_back({event.index, std::move(index)});
  return *this;
}

Graph::Graph(std::string name) : name_(std::move(name)) {
  sections_.push_back({"main", Expr(1)});
}

Expr Graph::AddSymbol(std::string name, int64_t min, int64_t max) {
  if (min > max) {
    mistakes_.push_back(absl::InvalidArgumentError(
        absl::StrFormat("symbol %s: its range [%d, %d] is empty", name, min, max)));
  } else if (min < 0 || max > INT32_MAX) {
    mistakes_.push_back(absl::InvalidArgumentError(absl::StrFormat(
        "symbol %s: its range [%d, %d] must lie within [0, 2^31)", name, min, max)));
  }
  if (symbols_.size() == kMaxSymbols) {
    mistakes_.push_back(absl::InvalidArgumentError(
        absl::StrFormat("symbol %s: a graph may have at most %d symbols", name, kMaxSymbols)));
  }
  symbols_.push_back({std::move(name), min, max});
  return Expr::Symbol(static_cast<int>(symbols_.size()) - 1);
}

void Graph::Assume(const Expr& at_least_zero) {
  if (at_least_zero.HasCoord() || at_least_zero.HasLayer() || at_least_zero.HasLoad()) {
    mistakes_.push_back(absl::InvalidArgumentError(
        "Assume: a relation between symbols may use symbols and constants only"));
    return;
  }
  assumptions_.push_back(at_least_zero);
}

TensorId Graph::AddTensor(std::string name, DType dtype, std::vector<Expr> shape, TensorRole role) {
  TensorDecl tensor;
  tensor.name = std::move(name);
  tensor.dtype = dtype;
  tensor.shape = std::move(shape);
  tensor.role = role;
  tensors_.push_back(std::move(tensor));
  return {static_cast<int>(tensors_.size()) - 1};
}

TensorId Graph::AddPublished(std::string name, std::vector<Expr> shape, int64_t min_value,
                             int64_t max_value, EventId event, std::vector<Expr> event_index) {
  const TensorId id =
      AddTensor(std::move(name), DType::kI32, std::move(shape), TensorRole::kScratch);
  TensorDecl& tensor = tensors_[id.index];
  tensor.min_value = min_value;
  tensor.max_value = max_value;
  tensor.published_by = event.index;
  tensor.published_index = std::move(event_index);
  const auto mistake = [&](const std::string& text) {
    mistakes_.push_back(
        absl::InvalidArgumentError(absl::StrCat("tensor ", tensor.name, ": ", text)));
  };
  if (event.index < 0 || event.index >= static_cast<int>(events_.size())) {
    mistake("it is published by an event that does not exist; add the event first");
  } else if (tensor.published_index.size() != events_[event.index].shape.size()) {
    mistake(absl::StrFormat("its publication names %d indices of event %s, which has %d dims",
                            tensor.published_index.size(), events_[event.index].name,
                            events_[event.index].shape.size()));
  }
  if (min_value > max_value || min_value < INT32_MIN || max_value > INT32_MAX)
    mistake(absl::StrFormat("its range of values [%d, %d] is empty or exceeds i32", min_value,
                            max_value));
  for (size_t i = 1; i < tensor.shape.size(); ++i) {
    if (!tensor.shape[i].AsConstant())
      mistake(
          "dims of a published tensor after the first must be constants, so that everyone agrees "
          "where an element is");
  }
  return id;
}

EventId Graph::AddEvents(std::string name, std::vector<Expr> shape) {
  events_.push_back({std::move(name), std::move(shape)});
  return {static_cast<int>(events_.size()) - 1};
}

void Graph::SetCounts(EventId event, TensorId counts) {
  if (event.index < 0 || event.index >= static_cast<int>(events_.size())) {
    mistakes_.push_back(absl::InvalidArgumentError("SetCounts: no such event"));
    return;
  }
  EventDecl& decl = events_[event.index];
  if (counts.index < 0 || counts.index >= static_cast<int>(tensors_.size())) {
    mistakes_.push_back(absl::InvalidArgumentError(
        absl::StrCat("event ", decl.name, ": SetCounts names a tensor that does not exist")));
    return;
  }
  const TensorDecl& tensor = tensors_[counts.index];
  if (tensor.published_by < 0) {
    mistakes_.push_back(absl::InvalidArgumentError(
        absl::StrFormat("event %s: its counts %s are not published by an event; use AddPublished",
                        decl.name, tensor.name)));
  } else if (tensor.shape.size() != decl.shape.size()) {
    mistakes_.push_back(absl::InvalidArgumentError(absl::StrFormat(
        "event %s has %d dims, but its counts %s have %d; there must be one count per element",
        decl.name, decl.shape.size(), tensor.name, tensor.shape.size())));
  }
  decl.count_tensor = counts.index;
}

Expr Graph::Load(TensorId tensor, std::vector<Expr> index) {
  if (tensor.index < 0 || tensor.index >= static_cast<int>(tensors_.size())) {
    mistakes_.push_back(absl::InvalidArgumentError("Load: no such tensor"));
    return Expr(0);
  }
  const TensorDecl& decl = tensors_[tensor.index];
  if (decl.published_by < 0) {
    mistakes_.push_back(absl::InvalidArgumentError(absl::StrFormat(
        "tensor %s: it is loaded in an extent or an edge, but no event publishes it; "
        "declare it with AddPublished",
        decl.name)));
    return Expr(0);
  }
  if (index.size() != decl.shape.size()) {
    mistakes_.push_back(absl::InvalidArgumentError(
        absl::StrFormat("tensor %s: a Load gives %d indices, its shape has %d dims", decl.name,
                        index.size(), decl.shape.size())));
    return Expr(0);
  }
  Expr element = 0;
  for (size_t i = 0; i < index.size(); ++i) {
    element = (i == 0 ? Expr(0) : element * decl.shape[i]) + index[i];
  }
  return Expr::Load(tensor.index, std::move(element), std::move(index));
}

void Graph::BeginSection(std::string name, int64_t layers) {
  if (layers < 1) {
    mistakes_.push_back(absl::InvalidArgumentError(
        absl::StrFormat("section %s: it has %d layers; at least 1 is needed", name, layers)));
    layers = 1;
  }
  // The section that every graph starts with exists only if something is in it.
  const int current = static_cast<int>(sections_.size()) - 1;
  const bool empty = grids_.empty() || grids_.back().section != current;
  if (current == 0 && empty) sections_.pop_back();
  sections_.push_back({std::move(name), Expr(layers)});
}

DimRef Graph::Dim(const Expr& expr) {
  if (const auto constant = expr.AsConstant()) {
    if (*constant < INT32_MIN || *constant > INT32_MAX) {
      mistakes_.push_back(absl::InvalidArgumentError(
          absl::StrFormat("a dim has the value %d, which does not fit i32", *constant)));
    }
    return {-1, static_cast<i32>(*constant)};
  }
  for (size_t i = 0; i < dims_.size(); ++i) {
    if (dims_[i].Equals(expr)) return {static_cast<i32>(i), 0};
  }
  if (expr.HasCoord() || expr.HasLayer() || expr.HasLoad()) {
    mistakes_.push_back(absl::InvalidArgumentError(
        "a dim may use symbols and constants only: it is evaluated once per step"));
    return {-1, 0};
  }
  if (dims_.size() == kMaxDims) {
    mistakes_.push_back(absl::InvalidArgumentError(
        absl::StrFormat("a graph may have at most %d derived dims", kMaxDims)));
    return {-1, 0};
  }
  dims_.push_back(expr);
  return {static_cast<i32>(dims_.size()) - 1, 0};
}

GridHandle Graph::CallOp(std::string name, const OpInfo* op, int variant,
                         std::vector<Operand> operands, std::vector<unsigned char> params,
                         std::vector<Expr> extents, std::vector<TensorBox> boxes) {
  GridDecl grid;
  grid.boxes = std::move(boxes);
  grid.name = std::move(name);
  grid.op = op;
  grid.variant = variant;
  grid.operands = std::move(operands);
  grid.params = std::move(params);
  grid.extents = std::move(extents);
  grid.section = static_cast<int>(sections_.size()) - 1;
  const auto mistake = [&](const std::string& text) {
    mistakes_.push_back(absl::InvalidArgumentError(absl::StrCat("grid ", grid.name, ": ", text)));
  };
  if (static_cast<int>(grid.operands.size()) != op->operand_count) {
    mistake(absl::StrFormat("op %s takes %d operands, %d were given", op->name, op->operand_count,
                            grid.operands.size()));
  }
  if (grid.extents.empty() || grid.extents.size() > kMaxCoords) {
    mistake(
        absl::StrFormat("it has %d extents; a grid has 1 to %d", grid.extents.size(), kMaxCoords));
  }
  grids_.push_back(std::move(grid));
  return GridHandle(this, static_cast<int>(grids_.size()) - 1);
}

}  // namespace eventide
