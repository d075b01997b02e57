#include "runtime/timeline.h"

#include <algorithm>
#include <cstring>

#include "runtime/evaluated_program.h"
#include "runtime/memory.h"

namespace eventide {
namespace {

// The program's edges with the values that the device had published, read back once.
class HostEdges {
 public:
  static absl::StatusOr<HostEdges> Create(Executor& executor, absl::Span<const int32_t> symbols) {
    const Program& program = executor.program();
    if (symbols.size() != program.symbols.size()) {
      return absl::InvalidArgumentError(absl::StrCat("a timeline of ", program.symbols.size(),
                                                     " symbols, given ", symbols.size()));
    }
    HostEdges edges;
    std::vector<uint64_t> addresses(program.tensors.size(), 0);
    for (size_t i = 0; i < program.tensors.size(); ++i) {
      if (program.tensors[i].published_by < 0) continue;
      const Buffer buffer = executor.TensorBuffer(static_cast<int>(i));
      edges.published_.emplace_back(static_cast<size_t>(buffer.bytes));
      RETURN_IF_ERROR(executor.Read(buffer, 0, edges.published_.back().data(), buffer.bytes));
      addresses[i] = reinterpret_cast<uint64_t>(edges.published_.back().data());
    }
    int nodes = 0;
    for (const ProgramGrid& grid : program.grids) nodes = std::max(nodes, grid.node + 1);
    edges.program_ =
        std::make_unique<EvaluatedProgram>(program, std::vector<Node>(nodes), addresses);
    std::copy(symbols.begin(), symbols.end(), edges.step_.symbols);
    edges.program_->EvaluateDims(edges.step_);
    return edges;
  }

  // Calls visit(event, element) for all that a task waits for or notifies.
  template <class F>
  void Visit(const TimelineRecord& record, bool waits, const F& visit) const {
    Coord at{record.layer, {}};
    std::copy(std::begin(record.at), std::end(record.at), at.at);
    const int grid = record.grid;
    const int count = waits ? program_->Waits(grid) : program_->Notifies(grid);
    for (int i = 0; i < count; ++i) {
      const ElementBox box =
          waits ? program_->WaitBox(step_, grid, at, i) : program_->NotifyBox(step_, grid, at, i);
      for (int32_t k = 0; k < box.size(); ++k) {
        int32_t index[kMaxEventDims];
        box.Index(k, index);
        visit(box.event, program_->Element(box.event, index));
      }
    }
  }

 private:
  std::vector<std::vector<char>> published_;
  std::unique_ptr<EvaluatedProgram> program_;
  StepView step_ = {};
};

absl::Status ReadRings(Executor& executor, Timeline* timeline) {
  const Buffer buffer = executor.TimelineBuffer();
  TimelineHeader header;
  RETURN_IF_ERROR(executor.Read(buffer, 0, &header, sizeof(header)));
  std::vector<char> bytes(TimelineRingBytes(header.capacity));
  timeline->begin_ns = UINT64_MAX;
  for (uint32_t ring_index = 0; ring_index < header.rings; ++ring_index) {
    const int64_t offset = static_cast<int64_t>(sizeof(header) + ring_index * bytes.size());
    TimelineRing ring;
    RETURN_IF_ERROR(executor.Read(buffer, offset, &ring, sizeof(ring)));
    if (ring.end_ns == 0) continue;  // not a role of this backend
    const uint32_t kept = std::min(ring.count, header.capacity);
    std::vector<TimelineRecord> records(kept);
    RETURN_IF_ERROR(executor.Read(buffer, offset + static_cast<int64_t>(sizeof(ring)),
                                  records.data(),
                                  static_cast<int64_t>(kept * sizeof(TimelineRecord))));
    TimelineRole role{static_cast<int>(ring_index / kRoles), ring_index % kRoles, ring.begin_ns,
                      ring.end_ns, ring.count - kept};
    timeline->roles.push_back(role);
    timeline->begin_ns = std::min<uint64_t>(timeline->begin_ns, ring.begin_ns);
    timeline->end_ns = std::max<uint64_t>(timeline->end_ns, ring.end_ns);
    for (uint32_t i = 0; i < kept; ++i) {  // from the oldest that is left
      const uint32_t at = (ring.count - kept + i) % header.capacity;
      const int grids = static_cast<int>(executor.program().grids.size());
      if (records[at].grid < 0 || records[at].grid >= grids) {
        return absl::InternalError(absl::StrCat("the timeline of worker ", role.worker,
                                                " names task grid ", records[at].grid, " of ",
                                                grids));
      }
      timeline->tasks.push_back({role.worker, role.role, records[at]});
    }
  }
  if (timeline->roles.empty()) {
    return absl::FailedPreconditionError("no step has recorded a timeline");
  }
  return absl::OkStatus();
}

void FindHops(const HostEdges& edges, const Program& program, Timeline* timeline) {
  constexpr size_t kNobody = SIZE_MAX;
  struct Ends {
    size_t from = kNobody, to = kNobody;
    int event = 0;
  };
  std::vector<Ends> elements(static_cast<size_t>(program.event_elements));
  const std::vector<TimelineTask>& tasks = timeline->tasks;
  const bool has_input = std::any_of(
      tasks.begin(), tasks.end(), [](const TimelineTask& task) { return task.role == kRoleInput; });
  for (size_t i = 0; i < tasks.size(); ++i) {
    const TimelineTask& task = tasks[i];
    // A gate stands in for producers that do not exist: no hop of a task.
    if (program.grids[task.record.grid].is_gate) continue;
    if (task.role == kRoleCompute) {
      edges.Visit(task.record, /*waits=*/false, [&](int event, int32_t element) {
        Ends& ends = elements[element];
        ends.event = event;
        if (ends.from == kNobody || tasks[ends.from].record.end_ns < task.record.end_ns) {
          ends.from = i;
        }
      });
    }
    if (task.role == (has_input ? kRoleInput : kRoleCompute)) {
      edges.Visit(task.record, /*waits=*/true, [&](int, int32_t element) {
        Ends& ends = elements[element];
        if (ends.to == kNobody || tasks[ends.to].record.wait_end_ns > task.record.wait_end_ns) {
          ends.to = i;
        }
      });
    }
  }
  for (size_t e = 0; e < elements.size(); ++e) {
    if (elements[e].from == kNobody || elements[e].to == kNobody) continue;
    timeline->hops.push_back(
        {elements[e].from, elements[e].to, elements[e].event, static_cast<int64_t>(e)});
  }
}

}  // namespace

TimelineHeader TimelineHeaderFor(int tasks, int workers) {
  TimelineHeader header = {};
  header.capacity = static_cast<uint32_t>(std::clamp(tasks, 1, kMaxTimelineTasks));
  header.rings = static_cast<uint32_t>(workers) * kRoles;
  return header;
}

absl::StatusOr<Timeline> ReadTimeline(Executor& executor, absl::Span<const int32_t> symbols) {
  if (executor.TimelineBuffer().bytes == 0) {
    return absl::FailedPreconditionError("this executor records no timeline");
  }
  Timeline timeline;
  RETURN_IF_ERROR(ReadRings(executor, &timeline));
  ASSIGN_OR_RETURN(const HostEdges edges, HostEdges::Create(executor, symbols));
  FindHops(edges, executor.program(), &timeline);
  return timeline;
}

}  // namespace eventide
