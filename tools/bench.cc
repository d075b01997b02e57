// eventide bench: measurements of steps and of the machine.
#include "tools/bench.h"

namespace eventide {

CommandBody AddBench(CLI::App* app) {
  app->require_subcommand(1);
  CLI::App* decode = app->add_subcommand("decode", "Time of a decode step against its floor");
  CLI::App* prefill =
      app->add_subcommand("prefill", "Time of a chunk of prompt against its floors");
  CLI::App* shapes = app->add_subcommand(
      "shapes", "Times of every batch, every chunk and both together: are there cliffs?");
  CLI::App* moe =
      app->add_subcommand("moe", "Time of a decode step of experts, for ways that tokens may go");
  CLI::App* sync = app->add_subcommand("sync", "What events, tickets, pages and barriers cost");
  const std::vector<std::pair<CLI::App*, CommandBody>> bodies = {
      {decode, AddBenchDecode(decode)},
      {prefill, AddBenchPrefill(prefill)},
      {shapes, AddBenchShapes(shapes)},
      {moe, AddBenchMoe(moe)},
      {sync, AddBenchSync(sync)}};
  return [=] {
    // One of them was parsed: a subcommand is required.
    for (const auto& [command, body] : bodies) {
      if (command->parsed()) return body();
    }
    return UsageError("bench needs a subcommand");
  };
}

}  // namespace eventide
