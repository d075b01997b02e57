// How a subcommand joins the one binary: a function that declares its flags and returns what to
// run.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace eventide {

inline constexpr int kExitOk = 0, kExitFailed = 1, kExitUsage = 2;

using CommandBody = std::function<absl::Status()>;

CommandBody AddGenerate(CLI::App* app);
CommandBody AddReplay(CLI::App* app);
CommandBody AddScore(CLI::App* app);
CommandBody AddExport(CLI::App* app);
CommandBody AddInspect(CLI::App* app);
CommandBody AddBench(CLI::App* app);
CommandBody AddWarmup(CLI::App* app);
CommandBody AddCache(CLI::App* app);
CommandBody AddStress(CLI::App* app);

// An error in how the command was called: exit code 2.
absl::Status UsageError(const std::string& message);
bool IsUsageError(const absl::Status& status);
// What is wrong with the values of flags alone, whoever found it: an invalid argument becomes a
// usage error, any other status stays.
absl::Status AsUsageError(const absl::Status& status);

// A signal cut the command short, and it has printed what it had: exit code 128 + the signal.
absl::Status InterruptedError();

// How this process was called, and when, in nanoseconds of the steady clock, it entered main.
struct ProcessStart {
  std::vector<std::string> arguments;  // without the program's name
  int64_t main_ns = 0;
};
const ProcessStart& ThisProcess();

// One object on stdout, on one line.
absl::Status PrintJson(const nlohmann::ordered_json& json);

// Writes all of it or says why not (a closed pipe, a full disk).
absl::Status PrintText(const std::string& text);

}  // namespace eventide
