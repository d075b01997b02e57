// eventide stress: random graphs, models, steps and requests on a device, against a reference.
#include "stress/stress.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_format.h"
#include "core/status.h"
#include "serve/backend.h"
#include "tools/command.h"
#include "tools/flags.h"
#include "tools/interrupt.h"
#include "tools/progress.h"

namespace eventide {
namespace {

struct StressFlags {
  StressOptions options;
  std::string device = "auto", replay;
  bool json = false, timed = false;
};

// The case that is running, for the handler of signals: if it takes the process down, it is known.
char running_case[8192];

extern "C" void TellCase(int number) {
  const auto tell = [](const char* text) {
    if (::write(STDERR_FILENO, text, std::strlen(text)) < 0) return;
  };
  tell(
      "\neventide stress: the process ends by a signal in this case; run it again with\n  --replay "
      "'");
  tell(running_case);
  tell("'\n");
  ::signal(number, SIG_DFL);
  ::raise(number);
}

void RememberCase(const StressCase& c) {
  const std::string text = c.ToText();
  const size_t size = std::min(text.size(), sizeof(running_case) - 1);
  std::memcpy(running_case, text.data(), size);
  running_case[size] = 0;
}

std::string Summary(const StressResult& r) {
  std::string text = absl::StrFormat(
      "%d cases on %s in %.1f s (seed %d): %d failures; %d steps, %d shapes, %d compilations while "
      "they ran\n",
      r.cases, r.device, r.seconds, r.seed, r.failures, r.steps, r.distinct_shapes,
      r.compilations_after_ready);
  if (r.first) {
    absl::StrAppendFormat(&text, "first failure: %s: %s\nmade smaller in %d runs:\n  %s\n",
                          r.first->outcome.sort, r.first->outcome.failure, r.first->minimise_runs,
                          absl::StrCat("eventide stress --device ", r.device, " --replay '",
                                       r.first->smallest.ToText(), "'"));
  }
  return text;
}

std::vector<std::string> KindNames() {
  std::vector<std::string> names;
  for (const StressKind& kind : StressKinds()) names.push_back(kind.name);
  return names;
}

absl::Status Run(StressFlags& flags) {
  ASSIGN_OR_RETURN(flags.options.device, ResolveDevice(flags.device));
  for (const int number : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT}) ::signal(number, &TellCase);
  Progress bar;
  flags.options.progress = [&](const StressProgress& p) {
    RememberCase(*p.next);
    const bool by_cases = flags.options.cases > 0;
    bar.Bar("stress", by_cases ? static_cast<double>(p.cases) : p.seconds,
            by_cases ? static_cast<double>(flags.options.cases) : flags.options.seconds,
            absl::StrFormat("%d cases, %d failures, %s", p.cases, p.failures, p.next->kind()));
  };
  StressResult result;
  if (!flags.replay.empty()) {
    absl::StatusOr<StressCase> c = StressCase::FromText(flags.replay);
    if (!c.ok()) return UsageError(absl::StrCat("--replay: ", c.status().message()));
    const absl::Status known = KnownStressKind(c->kind());
    if (!known.ok()) return UsageError(absl::StrCat("--replay: ", known.message()));
    result = ReplayStress(*c, flags.options);
  } else {
    // With a number of cases alone there is no limit of time.
    if (flags.options.cases > 0 && !flags.timed) flags.options.seconds = 1e9;
    flags.options.stop = [] { return PendingInterrupt() != 0; };
    DeferFirstInterrupt();
    ASSIGN_OR_RETURN(result, RunStress(flags.options));
  }
  bar.Clear();
  RETURN_IF_ERROR(flags.json ? PrintJson(ToJson(result)) : PrintText(Summary(result)));
  if (PendingInterrupt() != 0) return absl::CancelledError();
  if (result.failures == 0) return absl::OkStatus();
  return absl::InternalError(
      absl::StrFormat("%d of %d cases failed", result.failures, result.cases));
}

}  // namespace

CommandBody AddStress(CLI::App* app) {
  auto flags = std::make_shared<StressFlags>();
  app->add_option("--device", flags->device, "auto (cuda where there is one), cpu, sim, cuda")
      ->check(CLI::IsMember({"auto", "cpu", "sim", "cuda"}));
  CLI::Option* seconds =
      app->add_option("--seconds", flags->options.seconds, "No case begins afterwards")
          ->check(RealNumber(0, 1e9));
  app->add_option("--cases", flags->options.cases, "So many cases; 0: as the time allows")
      ->check(WholeNumber(0, 1'000'000'000));
  app->add_option("--seed", flags->options.seed, "Equal seeds give equal cases")
      ->check(WholeNumber(0, UINT64_MAX));
  app->add_option("--kinds", flags->options.kinds, "Of cases, such as graph,steps")
      ->delimiter(',')
      ->check(CLI::IsMember(KindNames()));
  app->add_option("--replay", flags->replay, "One case, as a failure prints it")->check(NotEmpty());
  app->add_flag("--json", flags->json, "One JSON object on stdout instead of text");
  std::string footer = "Kinds of cases, by turns:\n";
  for (const StressKind& kind : StressKinds()) {
    absl::StrAppendFormat(&footer, "  %-6s %s\n", kind.name, kind.what);
  }
  absl::StrAppend(
      &footer,
      "Everything is compared bit by bit: graphs with one CPU worker, sequences and requests with "
      "themselves\n"
      "alone. The first failure is made smaller and printed as a line for --replay; the exit code "
      "is "
      "then 1.\n"
      "Examples:\n"
      "  eventide stress --device cuda --seconds 300\n"
      "  eventide stress --device sim --cases 200 --seed 7 --json");
  app->footer(footer);
  return [=] {
    flags->timed = seconds->count() > 0;
    return Run(*flags);
  };
}

}  // namespace eventide
