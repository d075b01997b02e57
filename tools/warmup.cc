// eventide warmup: starts the engine in a process of its own, as a server would, and says where the
// time from exec to the first token went.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_format.h"
#include "core/status.h"
#include "serve/startup.h"
#include "tools/engine_flags.h"
#include "tools/flags.h"

namespace eventide {
namespace {

using Clock = std::chrono::steady_clock;

struct WarmupFlags {
  EngineFlags engine;
  bool cold = false, compare = false;
  int cold_starts = 1, cached_starts = 1;
  int prompt_tokens = 16, shapes = 8;
  int64_t exec_ns = 0;  // given to the process that is measured
};

int64_t NowNs() {
  return Clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

// The measured process: everything from exec to the first token, then shapes it has not seen.
absl::Status StartMeasured(const WarmupFlags& flags) {
  PhaseLog log;
  log.Add("exec_to_main", static_cast<double>(ThisProcess().main_ns - flags.exec_ns) / 1e6);
  log.Add("config", static_cast<double>(NowNs() - ThisProcess().main_ns) / 1e6);  // the flags
  ASSIGN_OR_RETURN(const auto opened, OpenEngine(flags.engine, 0, &log));
  RETURN_IF_ERROR(ServeFirstToken(opened->engine.get(), flags.prompt_tokens, &log));
  const double total_ms = static_cast<double>(NowNs() - flags.exec_ns) / 1e6;

  StartupReport report;
  report.model = flags.engine.model;
  report.device = opened->runner->device();
  FinishReport(log, total_ms, &report);
  const BackendCounts ready = CountBackends();
  report.compilations = ready.compilations;
  report.cubin_bytes = opened->runner->backend().cubin_bytes;
  report.cache_note = opened->runner->backend().cache_note;
  ASSIGN_OR_RETURN(report.shapes_tried, TryShapes(opened->engine.get(), flags.shapes));
  report.shape_specialisations = CountBackends().kernels - ready.kernels;
  opened->engine->Drain();
  return PrintJson(ToJson(report));
}

// A folder of its own for compiled kernels; gone with the object.
class ColdCache {
 public:
  static absl::StatusOr<std::unique_ptr<ColdCache>> Make() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "eventide-warmup-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) {
      return absl::UnavailableError(
          absl::StrCat("no folder for an empty cache: ", pattern, ": ", std::strerror(errno)));
    }
    return std::unique_ptr<ColdCache>(new ColdCache(pattern));
  }
  ColdCache(const ColdCache&) = delete;
  ~ColdCache() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  explicit ColdCache(std::string path) : path_(std::move(path)) {}
  const std::string path_;
};

// In the child: becomes the program again. The time of exec is taken as late as it can be.
[[noreturn]] void ExecAgain(int output, const std::string& cache_folder) {
  if (!cache_folder.empty()) ::setenv("EVENTIDE_CACHE_DIR", cache_folder.c_str(), 1);
  std::vector<std::string> arguments = ThisProcess().arguments;
  arguments.insert(arguments.begin(), "eventide");
  arguments.push_back(absl::StrCat("--exec-ns=", NowNs()));
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  ::dup2(output, STDOUT_FILENO);
  ::execv("/proc/self/exe", pointers.data());
  ::_exit(127);
}

absl::StatusOr<std::string> ReadAll(int file) {
  std::string text;
  char buffer[4096];
  for (;;) {
    const ssize_t bytes = ::read(file, buffer, sizeof(buffer));
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0) return absl::UnavailableError("the measured process cannot be read from");
    if (bytes == 0) return text;
    text.append(buffer, static_cast<size_t>(bytes));
  }
}

absl::StatusOr<StartupReport> Start(const std::string& cache_folder) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return absl::UnavailableError("no pipe to a new process");
  const pid_t child = ::fork();
  if (child == 0) ExecAgain(ends[1], cache_folder);
  ::close(ends[1]);
  if (child < 0) {
    ::close(ends[0]);
    return absl::UnavailableError(absl::StrCat("no new process: ", std::strerror(errno)));
  }
  const absl::StatusOr<std::string> text = ReadAll(ends[0]);
  ::close(ends[0]);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == kExitUsage) {
    return UsageError("the start was refused for the reason above");
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    return absl::InternalError(
        WIFSIGNALED(status)
            ? absl::StrCat("the process that was measured ended by signal ", WTERMSIG(status))
            : std::string("the start that was measured failed for the reason above"));
  }
  RETURN_IF_ERROR(text.status());
  const nlohmann::json json = nlohmann::json::parse(*text, nullptr, false);
  if (json.is_discarded()) return absl::InternalError("the measured process printed no report");
  return StartupFromJson(json);
}

// The one whose wall time is in the middle.
const StartupReport& Median(std::vector<StartupReport>& reports) {
  const auto middle = reports.begin() + static_cast<long>(reports.size() / 2);
  std::nth_element(reports.begin(), middle, reports.end(),
                   [](const auto& a, const auto& b) { return a.total_ms < b.total_ms; });
  return *middle;
}

struct Starts {
  std::vector<StartupReport> cold, cached;
};

absl::StatusOr<Starts> MeasureStarts(const WarmupFlags& flags) {
  Starts starts;
  const int cold = flags.cold || flags.compare ? flags.cold_starts : 0;
  const int cached = flags.cold ? 0 : flags.cached_starts;
  Progress progress;
  const auto show = [&](int done, const char* what) {
    progress.Bar("starts", done, cold + cached, what);
  };
  std::unique_ptr<ColdCache> folder;
  for (int i = 0; i < cold; ++i) {
    show(i, "empty cache");
    ASSIGN_OR_RETURN(folder, ColdCache::Make());
    ASSIGN_OR_RETURN(StartupReport report, Start(folder->path()));
    report.cache = "cold";
    starts.cold.push_back(std::move(report));
  }
  for (int i = 0; i < cached; ++i) {
    show(cold + i, "cached");
    ASSIGN_OR_RETURN(StartupReport report, Start(folder == nullptr ? "" : folder->path()));
    // The user's own cache may not have had this kernel.
    const bool compiled = report.compilations > 0;
    report.cache = compiled ? "cold" : "cached";
    (compiled ? starts.cold : starts.cached).push_back(std::move(report));
  }
  return starts;
}

absl::Status RunWarmup(const WarmupFlags& flags) {
  if (flags.exec_ns > 0) return StartMeasured(flags);
  if (flags.cold && flags.compare) return UsageError("give --cold or --compare, not both");
  ASSIGN_OR_RETURN(Starts starts, MeasureStarts(flags));
  std::vector<StartupReport> shown;
  if (!starts.cold.empty()) shown.push_back(Median(starts.cold));
  if (!starts.cached.empty()) shown.push_back(Median(starts.cached));
  if (!flags.engine.json) return PrintText(StartupTable(shown));
  nlohmann::ordered_json json = ToJson(shown.back());
  if (flags.compare) {
    for (const StartupReport& report : shown) json[report.cache] = ToJson(report);
  }
  json.update(StartupTimesJson("cold", starts.cold));
  json.update(StartupTimesJson("warm", starts.cached));
  return PrintJson(json);
}

std::string Footer() {
  std::string text =
      "Each start is a process of its own, so exec and linking count. Phases never overlap; what "
      "is\n"
      "in none of them is 'unaccounted'. Phases:\n";
  for (const PhaseName& phase : StartupPhases()) {
    absl::StrAppendFormat(&text, "  %-14s%s\n", phase.name, phase.what);
  }
  absl::StrAppend(
      &text,
      "Phases that a device does not have (nvrtc and module_load on cpu and sim) are left out.\n"
      "'cold' is an empty cache of compiled kernels; the operating system's file cache stays as it "
      "is.\n"
      "On cpu and sim nothing is compiled, so a cold start is like a cached one.\n"
      "--json also has the names of vllm bench startup, in seconds: avg_cold_startup_time,\n"
      "cold_startup_times, cold_startup_percentiles, avg_cold_compilation_time, ..., and warm_ for "
      "cached.\n"
      "Examples:\n"
      "  eventide warmup --model random:llama-3.2-1b --compare\n"
      "  eventide warmup --model random:test-llama --device cpu --cold --json");
  return text;
}

}  // namespace

CommandBody AddWarmup(CLI::App* app) {
  auto flags = std::make_shared<WarmupFlags>();
  AddEngineFlags(app, &flags->engine);
  AddDraftModelFlags(app, &flags->engine);
  app->add_flag("--cold", flags->cold, "With an empty cache of compiled kernels");
  app->add_flag("--compare", flags->compare,
                "With an empty cache, then with what that start left in it, side by side");
  app->add_option("--num-iters-cold", flags->cold_starts,
                  "Cold starts; the median is shown, --json has all times")
      ->check(WholeNumber(1, 1000));
  app->add_option("--num-iters-warm", flags->cached_starts, "Cached starts, likewise")
      ->check(WholeNumber(1, 1000));
  app->add_option("--prompt-tokens", flags->prompt_tokens, "Of the prompt whose token is awaited")
      ->check(WholeNumber(1, 1 << 20));
  app->add_option("--shapes", flags->shapes,
                  "Batches of new shapes to run after the first token: they must build nothing")
      ->check(WholeNumber(0, 1024));
  app->add_option("--exec-ns", flags->exec_ns, "")->group("");
  app->footer(Footer());
  return [=] { return RunWarmup(*flags); };
}

}  // namespace eventide
