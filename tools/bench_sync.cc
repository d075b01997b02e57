// eventide bench sync: the words of synchronisation on this GPU.
#include <memory>

#include "absl/strings/str_format.h"
#include "core/status.h"
#include "runtime/cuda_probe.h"
#include "tools/bench.h"

namespace eventide {
namespace {

absl::Status RunBenchSync(bool json) {
  ASSIGN_OR_RETURN(const auto probe, CudaProbe::Open());
  ASSIGN_OR_RETURN(const SyncTimes t, probe->Sync());
  if (json) {
    return PrintJson({{"gpu", probe->gpu()},
                      {"multiprocessors", probe->multiprocessors()},
                      {"hop_us", {{"min", t.hop_us_min}, {"p50", t.hop_us}, {"max", t.hop_us_max}}},
                      {"ticket_us", t.ticket_us},
                      {"ticket_contended_us", t.ticket_contended_us},
                      {"page_ns", t.page_ns},
                      {"page_contended_ns", t.page_contended_ns},
                      {"barrier_us", t.barrier_us}});
  }
  return PrintText(absl::StrFormat(
      "%s, %d multiprocessors\n"
      "event, one way     %.2f us median, %.2f to %.2f\n"
      "ticket             %.2f us alone, %.2f us when all pop one counter\n"
      "page, both ways    %.0f ns alone, %.0f ns with the other lane\n"
      "barrier of all     %.2f us\n",
      probe->gpu(), probe->multiprocessors(), t.hop_us, t.hop_us_min, t.hop_us_max, t.ticket_us,
      t.ticket_contended_us, t.page_ns, t.page_contended_ns, t.barrier_us));
}

}  // namespace

CommandBody AddBenchSync(CLI::App* app) {
  auto json = std::make_shared<bool>(false);
  app->add_flag("--json", *json, "One JSON object on stdout instead of text");
  return [=] { return RunBenchSync(*json); };
}

}  // namespace eventide
