#include "runtime/timeline_report.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <set>

#include "absl/strings/str_format.h"
#include "device/abi.h"

namespace eventide {
namespace {

using Json = nlohmann::ordered_json;

struct Slice {
  int worker, role, grid;
  int64_t layer;
  double start_us, end_us, wait_us, stall_us;
  int64_t bytes, copies, in_flight;
};

// One grid in one layer.
struct Instance {
  int grid = 0;
  double last_us = 0;
  std::map<int, double> end_of_worker;
};

class Reporter {
 public:
  absl::StatusOr<TimelineReport> Run(const Json& trace) {
    if (trace.contains("otherData")) report_.about = trace["otherData"];
    if (!trace.contains("traceEvents") || !trace["traceEvents"].is_array()) {
      return absl::InvalidArgumentError("not a timeline: it has no traceEvents");
    }
    for (const Json& event : trace["traceEvents"]) Read(event);
    if (slices_.empty()) return absl::InvalidArgumentError("not a timeline: it has no tasks");
    report_.workers = static_cast<int>(workers_.size());
    Tasks();
    Advance();
    Hops();
    Stream();
    for (auto& [grid, time] : grids_) report_.grids.push_back(time);
    return std::move(report_);
  }

 private:
  void Read(const Json& event) {
    const std::string phase = event.value("ph", "");
    if (phase == "M" && event.value("name", "") == "thread_name") {
      const Json& args = event.at("args");
      report_.dropped += args.at("dropped").get<int64_t>();
      const double end = args.at("end_us");
      step_us_ = std::max(step_us_, end);
      if (event.at("tid") == int{kRoleStream}) stream_end_us_.push_back(end);
    } else if (phase == "X" && event.value("cat", "") == "task") {
      const Json& args = event.at("args");
      const double ts = event.at("ts"), dur = event.at("dur");
      Slice slice{event.at("pid"),
                  event.at("tid"),
                  args.at("grid"),
                  args.at("layer"),
                  ts,
                  ts + dur,
                  args.at("wait_us"),
                  args.at("stall_us"),
                  args.at("bytes"),
                  args.at("copies"),
                  args.at("in_flight")};
      workers_.insert(slice.worker);
      grids_[slice.grid].name = event.at("name");
      has_input_ = has_input_ || slice.role == int{kRoleInput};
      slices_.push_back(slice);
    } else if (phase == "s") {
      hop_from_[event.at("id")] = event.at("ts");
    } else if (phase == "f") {
      hop_to_[event.at("id")] = {event.at("pid"), event.at("ts")};
    }
  }

  double PerWorker(double us) const { return us / 1e3 / static_cast<double>(workers_.size()); }

  void Tasks() {
    first_us_ = step_us_;
    for (const Slice& s : slices_) {
      GridTime& time = grids_[s.grid];
      if (s.role == int{kRoleStream}) {
        time.bytes += s.bytes;
      } else if (s.role == (has_input_ ? int{kRoleInput} : int{kRoleCompute})) {
        time.wait_ms += PerWorker(s.wait_us);
      }
      if (s.role != int{kRoleCompute}) continue;
      const double took = s.end_us - s.start_us - s.wait_us;
      ++time.tasks;
      time.mean_us += took;
      time.max_us = std::max(time.max_us, took);
      time.stall_ms += PerWorker(s.stall_us);
      first_us_ = std::min(first_us_, s.start_us);
      Instance& instance = instances_[{s.layer, s.grid}];
      instance.grid = s.grid;
      instance.last_us = std::max(instance.last_us, s.end_us);
      double& end = instance.end_of_worker[s.worker];
      end = std::max(end, s.end_us);
    }
    const double ceiling = report_.about.value("ceiling_gbps", 0.0);
    for (auto& [grid, time] : grids_) {
      if (time.tasks > 0) time.mean_us /= static_cast<double>(time.tasks);
      if (ceiling > 0) time.floor_ms = static_cast<double>(time.bytes) / (ceiling * 1e6);
      report_.stream_bytes += time.bytes;
    }
    report_.floor_ms = report_.about.value("floor_ms", 0.0);
    report_.step_ms = step_us_ / 1e3;
  }

  // Instances by the end of their last task: each is charged with the time since the last end.
  void Advance() {
    std::vector<const Instance*> order;
    std::map<int, int> layers;
    for (const auto& [key, instance] : instances_) {
      order.push_back(&instance);
      double sum = 0;
      for (const auto& [worker, end] : instance.end_of_worker) sum += end;
      grids_[instance.grid].imbalance_us +=
          instance.last_us - sum / static_cast<double>(instance.end_of_worker.size());
      ++layers[instance.grid];
    }
    for (const auto& [grid, count] : layers) grids_[grid].imbalance_us /= count;
    std::stable_sort(order.begin(), order.end(),
                     [](const Instance* a, const Instance* b) { return a->last_us < b->last_us; });
    report_.head_ms = first_us_ / 1e3;
    double at = first_us_;
    for (const Instance* instance : order) {
      grids_[instance->grid].advance_ms += (instance->last_us - at) / 1e3;
      at = instance->last_us;
    }
    report_.tail_ms = (step_us_ - at) / 1e3;
  }

  void Hops() {
    // The waiting slice is found by where its wait ends.
    std::map<std::pair<int, int64_t>, int> grid_at;
    const auto tick = [](double us) { return static_cast<int64_t>(us * 1e3 + 0.5); };
    const int role = has_input_ ? int{kRoleInput} : int{kRoleCompute};
    for (const Slice& s : slices_) {
      if (s.role == role) grid_at[{s.worker, tick(s.start_us + s.wait_us)}] = s.grid;
    }
    std::map<int, std::vector<double>> hops;
    for (const auto& [id, to] : hop_to_) {
      const auto grid = grid_at.find({to.first, tick(to.second)});
      const auto from = hop_from_.find(id);
      if (grid == grid_at.end() || from == hop_from_.end()) continue;
      hops[grid->second].push_back(to.second - from->second);
    }
    for (auto& [grid, us] : hops) {
      std::nth_element(us.begin(), us.begin() + us.size() / 2, us.end());
      grids_[grid].hop_us = us[us.size() / 2];
    }
  }

  void Stream() {
    double stall_us = 0, in_flight = 0;
    int64_t copies = 0, bytes = 0;
    for (const Slice& s : slices_) {
      if (s.role != int{kRoleStream}) continue;
      stall_us += s.stall_us;
      in_flight += static_cast<double>(s.in_flight);
      copies += s.copies;
      bytes += s.bytes;
    }
    report_.stream_stall_ms = PerWorker(stall_us);
    if (copies > 0) {
      report_.in_flight_bytes = in_flight / static_cast<double>(copies) *
                                static_cast<double>(bytes) / static_cast<double>(copies);
    }
    double ahead = 0;
    for (const double end : stream_end_us_) ahead += step_us_ - end;
    if (!stream_end_us_.empty()) {
      report_.stream_ahead_ms = ahead / 1e3 / static_cast<double>(stream_end_us_.size());
    }
  }

  TimelineReport report_;
  std::vector<Slice> slices_;
  std::set<int> workers_;
  std::map<int, GridTime> grids_;
  std::map<std::pair<int64_t, int>, Instance> instances_;
  std::map<int64_t, double> hop_from_;
  std::map<int64_t, std::pair<int, double>> hop_to_;
  std::vector<double> stream_end_us_;
  double step_us_ = 0, first_us_ = 0;
  bool has_input_ = false;
};

}  // namespace

absl::StatusOr<TimelineReport> ReportTimeline(const Json& trace) {
  try {
    return Reporter().Run(trace);
  } catch (const nlohmann::json::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("not a timeline that bench wrote: ", error.what()));
  }
}

absl::StatusOr<TimelineReport> ReportTimelineFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat("the timeline ", path, " cannot be opened"));
  file.peek();  // Opening a folder succeeds; reading it would throw inside the parser.
  if (file.bad()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the timeline ", path, " cannot be read: is it a file?"));
  }
  const Json trace = Json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (trace.is_discarded()) {
    return absl::InvalidArgumentError(absl::StrCat("the timeline ", path, " is not JSON"));
  }
  absl::StatusOr<TimelineReport> report = ReportTimeline(trace);
  if (!report.ok()) {
    return absl::Status(report.status().code(),
                        absl::StrCat(path, ": ", report.status().message()));
  }
  return report;
}

std::string ToText(const TimelineReport& r) {
  std::string text;
  for (const auto& [key, value] : r.about.items()) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", key, " ",
                    value.is_string() ? value.get<std::string>() : value.dump());
  }
  absl::StrAppendFormat(&text, "\nstep %.3f ms on %d workers", r.step_ms, r.workers);
  if (r.floor_ms > 0) {
    absl::StrAppendFormat(&text, "; floor %.3f ms (share %.2f)", r.floor_ms,
                          r.floor_ms / r.step_ms);
  }
  absl::StrAppendFormat(&text, "; head %.3f ms, tail %.3f ms\n", r.head_ms, r.tail_ms);
  if (r.stream_bytes > 0) {
    absl::StrAppendFormat(
        &text,
        "stream: %.1f MB, %.0f KiB in flight per worker%s, %.3f ms waiting for free pages, ends "
        "%.3f ms before the step\n",
        r.stream_bytes / 1e6, r.in_flight_bytes / 1024,
        r.in_flight_bytes < 65536 ? " (too few: below 64)" : "", r.stream_stall_ms,
        r.stream_ahead_ms);
  }
  if (r.dropped > 0) {
    absl::StrAppendFormat(&text, "%d tasks are missing: the recording was too short\n", r.dropped);
  }
  absl::StrAppendFormat(&text, "%-12s %7s %9s %9s %11s %6s %9s %9s %9s %12s %8s %9s\n", "grid",
                        "tasks", "mean us", "max us", "advance ms", "share", "floor ms", "wait ms",
                        "stall ms", "imbalance us", "hop us", "MB");
  for (const GridTime& g : r.grids) {
    absl::StrAppendFormat(
        &text, "%-12s %7d %9.2f %9.2f %11.3f %5.1f%% %9.3f %9.3f %9.3f %12.2f %8.2f %9.1f\n",
        g.name, g.tasks, g.mean_us, g.max_us, g.advance_ms,
        r.step_ms > 0 ? 100 * g.advance_ms / r.step_ms : 0.0, g.floor_ms, g.wait_ms, g.stall_ms,
        g.imbalance_us, g.hop_us, g.bytes / 1e6);
  }
  return text;
}

Json ToJson(const TimelineReport& r) {
  Json grids = Json::array();
  for (const GridTime& g : r.grids) {
    grids.push_back({{"name", g.name},
                     {"tasks", g.tasks},
                     {"mean_us", g.mean_us},
                     {"max_us", g.max_us},
                     {"advance_ms", g.advance_ms},
                     {"floor_ms", g.floor_ms},
                     {"wait_ms", g.wait_ms},
                     {"stall_ms", g.stall_ms},
                     {"imbalance_us", g.imbalance_us},
                     {"hop_us", g.hop_us},
                     {"bytes", g.bytes}});
  }
  return {{"about", r.about},
          {"workers", r.workers},
          {"step_ms", r.step_ms},
          {"head_ms", r.head_ms},
          {"tail_ms", r.tail_ms},
          {"floor_ms", r.floor_ms},
          {"stream",
           {{"bytes", r.stream_bytes},
            {"in_flight_bytes", r.in_flight_bytes},
            {"stall_ms", r.stream_stall_ms},
            {"ahead_ms", r.stream_ahead_ms}}},
          {"dropped", r.dropped},
          {"grids", grids}};
}

}  // namespace eventide
