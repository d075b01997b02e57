// eventide bench: measurements of steps and of the machine.
#include "tools/bench.h"

namespace eventide {

CommandBody AddBench(CLI::App* app) {
  app->require_subcommand(1);
  CLI::App* decode = app->add_subcommand("decode", "Time of a decode step against its floor");
  CLI::App* moe =
      app->add_subcommand("moe", "Time of a decode step of experts, for ways that tokens may go");
  CLI::App* sync = app->add_subcommand("sync", "What events, tickets, pages and barriers cost");
  const CommandBody run_decode = AddBenchDecode(decode), run_sync = AddBenchSync(sync),
                    run_moe = AddBenchMoe(moe);
  return [=] {
    if (moe->parsed()) return run_moe();
    return decode->parsed() ? run_decode() : run_sync();
  };
}

}  // namespace eventide
