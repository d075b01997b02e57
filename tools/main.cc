// The one binary: eventide SUBCOMMAND [flags].
#include <chrono>
#include <cstdio>
#include <exception>

#include "absl/strings/str_cat.h"
#include "tools/command.h"
#include "tools/flags.h"
#include "tools/interrupt.h"
#include "tools/version.h"

namespace eventide {
namespace {

constexpr char kUsagePayload[] = "eventide/usage";

// What the parser found, as every other error, and where to read more.
std::string UsageMessage(const CLI::App* app, const CLI::Error& error) {
  std::string command = "eventide";
  for (auto parsed = app->get_subcommands(); !parsed.empty(); parsed = parsed[0]->get_subcommands()) {
    absl::StrAppend(&command, " ", parsed[0]->get_name());
  }
  return absl::StrCat("eventide: ", error.what(), "; ", command, " --help says more\n");
}

ProcessStart process;

int Run(int argc, char** argv) {
  process.main_ns =
      std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
  process.arguments.assign(argv + 1, argv + argc);
  CLI::App app(
      "Runs language models as event tensor programs: one kernel for every shape, no recompiling.");
  app.require_subcommand(1);
  app.option_defaults()->always_capture_default();
  app.formatter(DefaultsBehindTexts());
  app.failure_message(&UsageMessage);
  app.set_version_flag("--version", "eventide " + Version(), "The version, and exit");
  app.footer(
      "Examples:\n"
      "  eventide generate --model random:test-llama --tokens 1,2,3 --max-tokens 8\n"
      "  eventide replay --model random:test-llama --trace trace.csv --closed-loop 16\n"
      "  eventide SUBCOMMAND --help");
  struct Command {
    const char* name;
    const char* summary;
    CommandBody (*add)(CLI::App*);
  };
  static constexpr Command kCommands[] = {
      {"generate", "Continues one prompt", &AddGenerate},
      {"replay", "Serves the requests of a trace and measures it", &AddReplay},
      {"score", "Log probabilities of given tokens", &AddScore},
      {"export", "Writes a model as a Hugging Face folder", &AddExport},
      {"inspect", "Shows graphs, schedules, kernels and timelines", &AddInspect},
      {"bench", "Times steps and the machine", &AddBench},
      {"stress", "Random graphs, models, steps and requests against a reference", &AddStress},
      {"cache", "Lists, adds or clears compiled kernels", &AddCache},
      {"warmup", "Where the time of a start goes, phase by phase", &AddWarmup},
  };
  CommandBody chosen;
  for (const Command& command : kCommands) {
    CLI::App* sub = app.add_subcommand(command.name, command.summary);
    sub->callback([&chosen, body = command.add(sub)] { chosen = body; });
  }
  const auto named = [&](const CLI::App* sub) { return sub->get_name() == argv[1]; };
  if (argc > 1 && argv[1][0] != '-' && app.get_subcommands(named).empty()) {
    std::fprintf(stderr, "eventide: '%s' is no subcommand; eventide --help lists them\n", argv[1]);
    return kExitUsage;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  absl::Status status;
  try {
    status = chosen();
  } catch (const std::exception& error) {  // what a library threw, such as out of memory
    status = absl::InternalError(absl::StrCat("unexpected failure: ", error.what()));
  }
  if (status.ok()) return kExitOk;
  if (absl::IsCancelled(status) && PendingInterrupt() != 0) {
    std::fprintf(stderr, "eventide: interrupted\n");
    return 128 + PendingInterrupt();
  }
  std::fprintf(stderr, "eventide: %s\n", std::string(status.message()).c_str());
  return IsUsageError(status) ? kExitUsage : kExitFailed;
}

}  // namespace

const ProcessStart& ThisProcess() {
  return process;
}

absl::Status UsageError(const std::string& message) {
  absl::Status status = absl::InvalidArgumentError(message);
  status.SetPayload(kUsagePayload, absl::Cord());
  return status;
}

bool IsUsageError(const absl::Status& status) {
  return status.GetPayload(kUsagePayload).has_value();
}

absl::Status AsUsageError(const absl::Status& status) {
  return absl::IsInvalidArgument(status) ? UsageError(std::string(status.message())) : status;
}

absl::Status InterruptedError() {
  return absl::CancelledError("interrupted");
}

absl::Status PrintText(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    return absl::DataLossError("standard output cannot be written");
  }
  return absl::OkStatus();
}

absl::Status PrintJson(const nlohmann::ordered_json& json) {
  // Text that a model made is valid UTF-8; what a user gave (an id) may not be.
  return PrintText(json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) +
                   "\n");
}

}  // namespace eventide

int main(int argc, char** argv) {
  eventide::CatchInterrupts();
  return eventide::Run(argc, argv);
}
