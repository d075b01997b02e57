#include "runtime/chrome_trace.h"

#include <cstdio>

#include "absl/strings/str_format.h"

namespace eventide {
namespace {

constexpr const char* kRoleNames[] = {"stream", "input", "compute"};
static_assert(std::size(kRoleNames) == kRoles);
constexpr uint64_t kShownWaitNs = 100;  // shorter waits are in the arguments only

class Writer {
 public:
  Writer(const Timeline& timeline, const Program& program)
      : timeline_(timeline), program_(program) {
    for (const ProgramGrid& grid : program.grids) names_.push_back(Quoted(grid.name));
    for (const ProgramEvent& event : program.events) events_.push_back(Quoted(event.name));
  }

  std::string Run(const nlohmann::ordered_json& about) {
    out_ = "{\"displayTimeUnit\":\"ns\",\"otherData\":" + about.dump() + ",\n\"traceEvents\":[";
    int named = -1;
    for (const TimelineRole& role : timeline_.roles) Name(role, &named);
    for (const TimelineTask& task : timeline_.tasks) Task(task);
    for (size_t i = 0; i < timeline_.hops.size(); ++i) Hop(i);
    out_ += "\n]}\n";
    return std::move(out_);
  }

 private:
  static std::string Quoted(const std::string& text) { return nlohmann::json(text).dump(); }

  // Microseconds since the step began, to the nanosecond.
  std::string Time(uint64_t ns) const {
    const uint64_t since = ns > timeline_.begin_ns ? ns - timeline_.begin_ns : 0;
    return absl::StrFormat("%d.%03d", since / 1000, since % 1000);
  }
  static std::string Span(uint64_t from, uint64_t to) {
    const uint64_t ns = to > from ? to - from : 0;
    return absl::StrFormat("%d.%03d", ns / 1000, ns % 1000);
  }
  template <class... Args>
  void Event(const absl::FormatSpec<Args...>& format, const Args&... args) {
    out_ += first_ ? "\n" : ",\n";
    first_ = false;
    absl::StrAppendFormat(&out_, format, args...);
  }

  void Name(const TimelineRole& role, int* named) {
    if (role.worker != *named) {
      *named = role.worker;
      Event("{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_name\",\"args\":{\"name\":\"worker %d\"}}",
            role.worker, role.worker);
    }
    Event(
        "{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"thread_name\",\"args\":{\"name\":\"%s\","
        "\"begin_us\":%s,\"end_us\":%s,\"dropped\":%d}}",
        role.worker, role.role, kRoleNames[role.role], Time(role.begin_ns), Time(role.end_ns),
        role.dropped);
  }

  void Task(const TimelineTask& task) {
    const TimelineRecord& r = task.record;
    Event(
        "{\"ph\":\"X\",\"cat\":\"%s\",\"pid\":%d,\"tid\":%d,\"name\":%s,\"ts\":%s,\"dur\":%s,"
        "\"args\":{\"grid\":%d,\"layer\":%d,\"at\":[%d,%d,%d],\"wait_us\":%s,\"stall_us\":%s,"
        "\"bytes\":%d,\"copies\":%d,\"in_flight\":%d}}",
        program_.grids[r.grid].is_gate ? "gate" : "task", task.worker, task.role, names_[r.grid],
        Time(r.start_ns), Span(r.start_ns, r.end_ns), r.grid, r.layer, r.at[0], r.at[1], r.at[2],
        Span(r.start_ns, r.wait_end_ns), Span(0, r.stall_ns), r.bytes, r.copies, r.in_flight);
    if (r.wait_end_ns >= r.start_ns + kShownWaitNs && r.wait_end_ns <= r.end_ns) {
      Event(
          "{\"ph\":\"X\",\"cat\":\"wait\",\"pid\":%d,\"tid\":%d,\"name\":\"wait\",\"ts\":%s,"
          "\"dur\":%s}",
          task.worker, task.role, Time(r.start_ns), Span(r.start_ns, r.wait_end_ns));
    }
  }

  // A flow binds to the slices that enclose its ends: just before the notifier's end, and where the
  // waiter's wait ends.
  void Hop(size_t i) {
    const TimelineHop& hop = timeline_.hops[i];
    const TimelineTask& from = timeline_.tasks[hop.from];
    const TimelineTask& to = timeline_.tasks[hop.to];
    Event("{\"ph\":\"s\",\"cat\":\"event\",\"id\":%d,\"pid\":%d,\"tid\":%d,\"name\":%s,\"ts\":%s}",
          i, from.worker, from.role, events_[hop.event],
          Time(from.record.end_ns > from.record.start_ns ? from.record.end_ns - 1
                                                         : from.record.end_ns));
    Event(
        "{\"ph\":\"f\",\"bp\":\"e\",\"cat\":\"event\",\"id\":%d,\"pid\":%d,\"tid\":%d,\"name\":%s,"
        "\"ts\":%s}",
        i, to.worker, to.role, events_[hop.event], Time(to.record.wait_end_ns));
  }

  const Timeline& timeline_;
  const Program& program_;
  std::vector<std::string> names_, events_;
  std::string out_;
  bool first_ = true;
};

}  // namespace

std::string ChromeTrace(const Timeline& timeline, const Program& program,
                        const nlohmann::ordered_json& about) {
  return Writer(timeline, program).Run(about);
}

absl::Status WriteChromeTrace(const std::string& path, const Timeline& timeline,
                              const Program& program, const nlohmann::ordered_json& about) {
  const std::string text = ChromeTrace(timeline, program, about);
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) {
    return absl::UnavailableError(absl::StrCat("the timeline ", path, " cannot be created"));
  }
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const bool closed = std::fclose(file) == 0;
  if (!written || !closed) {
    return absl::DataLossError(
        absl::StrCat("the timeline ", path, " cannot be written: disk full?"));
  }
  return absl::OkStatus();
}

}  // namespace eventide
