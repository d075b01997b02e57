#include "runtime/abort.h"

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace eventide {

std::string TaskText(const Program& program, int grid, int layer, const int (&at)[kMaxCoords]) {
  if (grid < 0 || grid >= static_cast<int>(program.grids.size())) return "no task";
  const ProgramGrid& decl = program.grids[grid];
  std::string text = decl.name;
  if (program.sections[decl.section].layers > 1) absl::StrAppend(&text, ", layer ", layer);
  const size_t rank = decl.is_gate ? 0 : decl.extents.size();
  if (rank == 0) return text;
  return absl::StrCat(text, ", task (", absl::StrJoin(at, at + rank, ", "), ")");
}

std::string ElementText(const Program& program, int64_t element) {
  for (const ProgramEvent& event : program.events) {
    if (element < event.base || element >= event.base + event.elements) continue;
    int64_t rest = element - event.base;
    std::vector<int64_t> index(event.capacity.size());
    for (size_t dim = index.size(); dim-- > 0;) {
      index[dim] = rest % event.capacity[dim];
      rest /= event.capacity[dim];
    }
    return absl::StrCat(event.name, "[", absl::StrJoin(index, ", "), "]");
  }
  return absl::StrFormat("element %d of the counter bank", element);
}

absl::Status DescribeAbort(const Program& program, const AbortRecord& record) {
  static constexpr const char* kRoleNames[] = {"stream", "input", "compute"};
  const char* role = record.role < kRoles ? kRoleNames[record.role] : "unknown";
  const std::string who =
      absl::StrFormat("%s: worker %d (%s) at %s", program.name, record.worker, role,
                      TaskText(program, record.grid, record.layer, record.at));
  switch (record.cause) {
    case kAbortStuckEvent:
      return absl::DeadlineExceededError(
          absl::StrFormat("%s waited for event %s, which has %d of %d arrivals, and no task "
                          "finished anywhere within "
                          "the step's timeout; a task that notifies it is missing, stuck or slower "
                          "than the timeout",
                          who, ElementText(program, record.event), record.seen, record.expected));
    case kAbortStuckPage:
      return absl::DeadlineExceededError(
          absl::StrFormat("%s waited for a page (%d held, %d needed), and no task finished "
                          "anywhere within the step's "
                          "timeout",
                          who, record.seen, record.expected));
    default:
      return absl::InternalError(
          absl::StrFormat("%s ended the step for an unknown cause (%d)", who, record.cause));
  }
}

}  // namespace eventide
