// A timeline as a file that trace viewers open (the Chrome trace format, which Perfetto reads): one
// process per worker, one track per role, a slice per task with its waits inside, an arrow per hop
// from an event's last notifier to the first task that went on.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "core/program.h"
#include "runtime/timeline.h"

namespace eventide {

// `about` says what was run; it is kept under "otherData" (runtime/timeline_report.h reads it).
std::string ChromeTrace(const Timeline& timeline, const Program& program,
                        const nlohmann::ordered_json& about);

// Writes it or says why not.
absl::Status WriteChromeTrace(const std::string& path, const Timeline& timeline,
                              const Program& program, const nlohmann::ordered_json& about);

}  // namespace eventide
