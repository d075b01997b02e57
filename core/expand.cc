#include "core/expand.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "core/names.h"
#include "core/targets.h"

namespace eventide {
namespace {

struct CompiledRange {
  CompiledExpr low, high;
};
struct CompiledEdge {
  int event;
  std::vector<CompiledRange> index;
};
struct CompiledAccess {
  int tensor;
  bool writes, is_load, has_region;
  std::vector<CompiledRange> box;
};

CompiledRange Compile(const IndexRange& range) {
  return {CompiledExpr(range.low), CompiledExpr(range.high)};
}

CompiledEdge Compile(const Edge& edge) {
  CompiledEdge result{edge.event, {}};
  for (const IndexRange& range : edge.index) result.index.push_back(Compile(range));
  return result;
}

}  // namespace

struct Expander::Plan {
  std::vector<CompiledExpr> extents;
  std::vector<CompiledEdge> waits, notifies;
  std::vector<CompiledAccess> accesses;
  bool used[kMaxCoords] = {};  // coordinates that matter
};

Expander::~Expander() = default;

Expander::Expander(const Graph& graph, const Program& program) : graph_(graph), program_(program) {
  for (size_t e = 0; e < program.events.size(); ++e)
    potentials_.push_back(PotentialTarget(graph, static_cast<int>(e)));
  for (const ProgramGrid& grid : program.grids) {
    Plan plan;
    const auto use = [&](const Expr& expr) {
      Visit(expr, [&](const Expr& part) {
        if (part.kind() == ExprKind::kCoord) plan.used[part.index()] = true;
        if (part.kind() != ExprKind::kLoad) return;
        CompiledAccess access{part.index(), false, true, true, {}};
        for (const Expr& index : part.load_index())
          access.box.push_back(Compile(IndexRange(index)));
        plan.accesses.push_back(std::move(access));
      });
    };
    const auto use_edge = [&](const Edge& edge) {
      for (const IndexRange& range : edge.index) {
        use(range.low);
        if (!range.single) use(range.high);
      }
    };
    for (const Expr& extent : grid.extents) {
      use(extent);
      plan.extents.emplace_back(extent);
    }
    for (const auto* edges : {&grid.extent_publications, &grid.edge_publications, &grid.waits}) {
      for (const Edge& edge : *edges) {
        use_edge(edge);
        plan.waits.push_back(Compile(edge));
      }
    }
    for (const Edge& edge : grid.notifies) {
      use_edge(edge);
      plan.notifies.push_back(Compile(edge));
    }
    for (size_t i = 0; i < grid.operands.size(); ++i) {
      const Operand& operand = grid.operands[i];
      CompiledAccess access{
          operand.tensor, grid.op->operands[i].mode != kRead, false, !operand.region.empty(), {}};
      if (operand.indexed) access.box.push_back(Compile(IndexRange(operand.layer)));
      for (const IndexRange& range : operand.region) {
        use(range.low);
        use(range.high);
        access.box.push_back(Compile(range));
      }
      plan.accesses.push_back(access);
      // Reading and writing: also ordered as a reader, behind every earlier writer.
      if (grid.op->operands[i].mode == kReadWrite) {
        access.writes = false;
        plan.accesses.push_back(std::move(access));
      }
    }
    plans_.push_back(std::move(plan));
  }
}

// One expansion in progress.
class Expander::Run {
 public:
  Run(const Expander& expander, const SymbolValues& values, const PublishedValues& published,
      int64_t max_tasks)
      : graph_(expander.graph_),
        program_(expander.program_),
        expander_(expander),
        published_(published),
        max_tasks_(max_tasks) {
    for (size_t i = 0; i < values.size(); ++i) symbols_[i] = static_cast<int32_t>(values[i]);
    env_ = {symbols_, coords_, 0, &Run::Load, this};
  }

  absl::Status All() {
    for (const ProgramEvent& event : program_.events) {
      std::vector<int64_t> shape;
      for (const Expr& dim : event.shape) shape.push_back(CompiledExpr(dim)(env_));
      shapes_.push_back(std::move(shape));
    }
    for (const TensorDecl& tensor : program_.tensors) {
      int64_t elements = 1;
      for (const Expr& dim : tensor.shape)
        elements = SaturatingMul(elements, CompiledExpr(dim)(env_));
      tensor_elements_.push_back(elements);
    }
    RETURN_IF_ERROR(CountTasks());
    for (const ProgramSection& section : program_.sections) {
      for (int64_t layer = 0; layer < section.layers; ++layer) {
        for (int g = section.first_grid; g < section.first_grid + section.grid_count; ++g)
          RETURN_IF_ERROR(Grid(g, layer));
      }
    }
    return Targets();
  }

  Expansion& result() { return result_; }

 private:
  static int32_t Load(void* context, int tensor, int64_t element) {
    Run& run = *static_cast<Run*>(context);
    if (element < 0 || element >= run.tensor_elements_[tensor]) {
      if (run.fault_.ok()) {
        run.fault_ = absl::InvalidArgumentError(
            absl::StrFormat("element %d of tensor %s is loaded, which has %d", element,
                            run.program_.tensors[tensor].name, run.tensor_elements_[tensor]));
      }
      return 0;
    }
    return static_cast<int32_t>(run.published_(tensor, element));
  }

  absl::Status Fault(const ExpandedTask& task, const std::string& what) const {
    return absl::InvalidArgumentError(absl::StrCat(expander_.TaskName(task), " ", what));
  }

  // Gives up early where the symbols alone make too many tasks.
  absl::Status CountTasks() {
    int64_t total = 0;
    for (size_t g = 0; g < program_.grids.size(); ++g) {
      const Plan& plan = expander_.plans_[g];
      int64_t count = 1;
      for (size_t i = 0; i < plan.extents.size(); ++i) {
        const Expr& extent = program_.grids[g].extents[i];
        // What varies by layer may be small: leave it to the expansion.
        if (extent.HasLayer()) count = 0;
        if (plan.used[i] && !extent.HasLoad()) count = SaturatingMul(count, plan.extents[i](env_));
      }
      const int64_t layers = program_.sections[program_.grids[g].section].layers;
      if (!program_.grids[g].device_extent)
        total = SaturatingAdd(total, SaturatingMul(count, layers));
    }
    return total > max_tasks_ ? absl::ResourceExhaustedError("too many tasks") : absl::OkStatus();
  }

  absl::Status Grid(int g, int64_t layer) {
    const Plan& plan = expander_.plans_[g];
    env_.layer = static_cast<int32_t>(layer);
    std::fill(coords_, coords_ + kMaxCoords, 0);
    int64_t extents[kMaxCoords] = {1, 1, 1};
    ExpandedTask task{g, static_cast<int>(layer), {0, 0, 0}, 1, 0, 0, 0};
    for (size_t i = 0; i < plan.extents.size(); ++i) {
      extents[i] = plan.extents[i](env_);
      if (extents[i] < 0) return Fault(task, absl::StrFormat("has the extent %d", extents[i]));
    }
    if (!fault_.ok()) return Fault(task, std::string(fault_.message()));
    for (int i = 0; i < kMaxCoords; ++i) {
      if (plan.used[i] || extents[i] == 0) continue;
      task.weight *= extents[i];
      extents[i] = 1;
    }
    const int64_t count = SaturatingMul(SaturatingMul(extents[0], extents[1]), extents[2]);
    if (count + static_cast<int64_t>(result_.tasks.size()) > max_tasks_)
      return absl::ResourceExhaustedError("too many tasks");
    for (int64_t i = 0; i < count; ++i) {
      task.at[2] = i % extents[2];
      task.at[1] = i / extents[2] % extents[1];
      task.at[0] = i / extents[2] / extents[1];
      for (int c = 0; c < kMaxCoords; ++c) coords_[c] = static_cast<int32_t>(task.at[c]);
      RETURN_IF_ERROR(Task(plan, task));
    }
    return absl::OkStatus();
  }

  absl::Status Task(const Plan& plan, ExpandedTask task) {
    task.first_wait = static_cast<int>(result_.elements.size());
    for (const CompiledEdge& edge : plan.waits) RETURN_IF_ERROR(Elements(task, edge, "waits on"));
    task.first_notify = static_cast<int>(result_.elements.size());
    for (const CompiledEdge& edge : plan.notifies)
      RETURN_IF_ERROR(Elements(task, edge, "notifies"));
    task.end = static_cast<int>(result_.elements.size());
    const int id = static_cast<int>(result_.tasks.size());
    for (const CompiledAccess& access : plan.accesses) {
      Access touched{id, access.tensor, access.writes, access.is_load, access.has_region, {}};
      for (const CompiledRange& range : access.box) {
        if (touched.box.dims == kMaxBoxDims) break;
        touched.box.low[touched.box.dims] = range.low(env_);
        touched.box.high[touched.box.dims++] = range.high(env_);
      }
      result_.accesses.push_back(std::move(touched));
    }
    if (!fault_.ok()) return Fault(task, std::string(fault_.message()));
    result_.tasks.push_back(task);
    return absl::OkStatus();
  }

  absl::Status Elements(const ExpandedTask& task, const CompiledEdge& edge, const char* verb) {
    const ProgramEvent& event = program_.events[edge.event];
    int64_t low[kMaxEventDims] = {}, size[kMaxEventDims] = {1, 1, 1, 1}, count = 1;
    for (size_t dim = 0; dim < edge.index.size(); ++dim) {
      low[dim] = edge.index[dim].low(env_);
      const int64_t high = edge.index[dim].high(env_), shape = shapes_[edge.event][dim];
      size[dim] = high - low[dim];
      count = size[dim] > 0 ? SaturatingMul(count, size[dim]) : 0;
      if (size[dim] != 0 && (low[dim] < 0 || high > shape || size[dim] < 0)) {
        return Fault(task,
                     absl::StrFormat("%s event %s out of bounds: in dim %d it names [%d, %d), the "
                                     "shape is %d",
                                     verb, event.name, dim, low[dim], high, shape));
      }
    }
    if (count + static_cast<int64_t>(result_.elements.size()) > 8 * max_tasks_)
      return absl::ResourceExhaustedError("too many edges");
    for (int64_t i = 0; i < count; ++i) {
      int64_t flat = 0, rest = i, at[kMaxEventDims];
      for (int dim = kMaxEventDims - 1; dim >= 0; --dim) {
        at[dim] = low[dim] + rest % size[dim];
        rest /= size[dim];
      }
      for (size_t dim = 0; dim < event.capacity.size(); ++dim)
        flat = flat * event.capacity[dim] + at[dim];
      result_.elements.push_back(static_cast<int>(event.base + flat));
    }
    return absl::OkStatus();
  }

  // Targets of the elements that some task names.
  absl::Status Targets() {
    result_.derived.assign(program_.event_elements, -1);
    result_.target.assign(program_.event_elements, -1);
    result_.possible.assign(program_.event_elements, true);
    env_.layer = 0;
    std::vector<std::pair<CompiledExpr, CompiledExpr>> compiled;
    for (const ProgramEvent& event : program_.events)
      compiled.emplace_back(CompiledExpr(event.derived), CompiledExpr(event.target));
    int32_t element[kMaxEventDims] = {};
    env_.coords = element;
    for (int flat : result_.elements) {
      if (result_.target[flat] >= 0) continue;
      size_t e = 0;
      while (flat >= program_.events[e].base + program_.events[e].elements) ++e;
      const ProgramEvent& event = program_.events[e];
      int64_t rest = flat - event.base;
      for (int dim = static_cast<int>(event.capacity.size()) - 1; dim >= 0; --dim) {
        element[dim] = static_cast<int32_t>(rest % event.capacity[dim]);
        rest /= event.capacity[dim];
      }
      result_.derived[flat] = compiled[e].first(env_);
      result_.target[flat] = compiled[e].second(env_);
      if (result_.derived[flat] == 0) {
        result_.possible[flat] = CompiledExpr(expander_.potentials_[e])(env_) > 0;
      }
      if (result_.derived[flat] < 0) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "%s has the negative target %d", expander_.ElementText(flat), result_.derived[flat]));
      }
    }
    return fault_;
  }

  const Graph& graph_;
  const Program& program_;
  const Expander& expander_;
  const PublishedValues& published_;
  int64_t max_tasks_;
  int32_t symbols_[kMaxSymbols] = {};
  int32_t coords_[kMaxCoords] = {};
  CompiledExpr::Env env_;
  absl::Status fault_;
  std::vector<std::vector<int64_t>> shapes_;
  std::vector<int64_t> tensor_elements_;
  Expansion result_;
};

absl::StatusOr<Expansion> Expander::Expand(const SymbolValues& values,
                                           const PublishedValues& published,
                                           int64_t max_tasks) const {
  Run run(*this, values, published, max_tasks);
  RETURN_IF_ERROR(run.All());
  return std::move(run.result());
}

std::string Expander::ElementText(int element) const {
  for (const ProgramEvent& event : program_.events) {
    if (element >= event.base + event.elements) continue;
    std::vector<int64_t> index(event.capacity.size());
    int64_t rest = element - event.base;
    for (int dim = static_cast<int>(index.size()) - 1; dim >= 0; --dim) {
      index[dim] = rest % event.capacity[dim];
      rest /= event.capacity[dim];
    }
    return absl::StrCat("event ", event.name, "[", absl::StrJoin(index, ", "), "]");
  }
  return "no event";
}

std::string Expander::TaskName(const ExpandedTask& task) const {
  const ProgramGrid& grid = program_.grids[task.grid];
  return absl::StrCat("grid ", grid.name, " (", TaskText(grid.extents.size(), task.layer, task.at),
                      ")");
}

}  // namespace eventide
