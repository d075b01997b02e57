// The parts of `eventide bench`, one file each.
#pragma once

#include "tools/command.h"

namespace eventide {

CommandBody AddBenchDecode(CLI::App* app);
CommandBody AddBenchMoe(CLI::App* app);
CommandBody AddBenchPrefill(CLI::App* app);
CommandBody AddBenchShapes(CLI::App* app);
CommandBody AddBenchSync(CLI::App* app);

}  // namespace eventide
