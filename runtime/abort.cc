#include "runtime/abort.h"

#include <array>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace eventide {
namespace {

// Where a record stands: tasks in linear order, then causes from the one that explains most. A role that
// waits for another one names a task that it has ended, so it stands behind all that are at a task.
using Standing = std::array<int64_t, 5 + kMaxCoords>;
Standing StandingOf(const Program& program, const AbortRecord& record) {
  static constexpr int kRank[] = {0, /*event*/ 0, /*page*/ 2, /*role*/ 3, /*task*/ 1};
  const int section = program.grids[static_cast<size_t>(record.grid)].section;
  Standing standing = {record.cause == kAbortStuckRole, section, record.layer, record.grid};
  std::copy(std::begin(record.at), std::end(record.at), standing.begin() + 4);
  standing.back() = kRank[record.cause];
  return standing;
}

bool TellsSomething(const Program& program, const AbortRecord& record) {
  if (record.cause == kAbortNone || record.cause > kAbortStuckTask) return false;
  if (record.grid < 0 || record.grid >= static_cast<int>(program.grids.size())) return false;
  // What it had waited for came: it has gone on since.
  return record.cause != kAbortStuckEvent || record.seen < record.expected;
}

}  // namespace

int OldestRecord(const Program& program, absl::Span<const AbortRecord> records) {
  int oldest = -1;
  for (size_t i = 0; i < records.size(); ++i) {
    if (!TellsSomething(program, records[i])) continue;
    if (oldest < 0 || StandingOf(program, records[i]) <
                          StandingOf(program, records[static_cast<size_t>(oldest)])) {
      oldest = static_cast<int>(i);
    }
  }
  return oldest;
}

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

absl::Status DescribeAbort(const Program& program, absl::Span<const AbortRecord> records) {
  const int oldest = OldestRecord(program, records);
  if (oldest < 0) {
    return absl::DeadlineExceededError(absl::StrFormat(
        "%s: no task finished anywhere within the step's timeout, and no worker was at one",
        program.name));
  }
  const AbortRecord& record = records[static_cast<size_t>(oldest)];
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
                          "than the timeout, as when others use the same device",
                          who, ElementText(program, record.event), record.seen, record.expected));
    case kAbortStuckPage:
      return absl::DeadlineExceededError(
          absl::StrFormat("%s waited for a page to be granted or filled, and no task finished "
                          "anywhere within the step's timeout",
                          who));
    case kAbortStuckRole:
      return absl::DeadlineExceededError(
          absl::StrFormat("%s waited for another role of its worker after that task, and no task "
                          "finished anywhere within the step's timeout",
                          who));
    default:
      return absl::DeadlineExceededError(
          absl::StrFormat("%s: the task did not end, and no other finished anywhere within the "
                          "step's timeout; it is stuck or slower than the timeout, as when others use the "
                          "same device",
                          who));
  }
}

}  // namespace eventide
