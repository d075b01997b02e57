// sim_campaign FIRST_GRAPH GRAPHS SCHEDULES_PER_GRAPH [one_lane|zero_is_open|reserve]: schedules of
// random graphs in the simulator, beyond what the tests run. Prints one line; exit code 1 on any
// failure.
#include "tests/support/sim_campaign.h"

#include <cstdio>
#include <cstdlib>
#include <string>

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr,
                 "usage: sim_campaign FIRST_GRAPH GRAPHS SCHEDULES_PER_GRAPH "
                 "[one_lane|zero_is_open|reserve]\n");
    return 2;
  }
  eventide::SimControls controls;
  const std::string control = argc > 4 ? argv[4] : "";
  controls.one_page_lane = control == "one_lane" || control == "reserve";
  controls.zero_is_open = control == "zero_is_open";
  controls.reserve_then_wait = control == "reserve";
  const eventide::CampaignResult r = eventide::RunCampaign(
      std::strtoull(argv[1], nullptr, 10), std::atoi(argv[2]), std::atoi(argv[3]), 20, controls);
  std::printf("schedules %lld switches %lld deadlocks %lld wrong %lld errors %lld refused %lld\n",
              static_cast<long long>(r.schedules), static_cast<long long>(r.switches),
              static_cast<long long>(r.deadlocks), static_cast<long long>(r.wrong_values),
              static_cast<long long>(r.other_errors), static_cast<long long>(r.refused));
  if (!r.first.empty()) std::printf("%s\n", r.first.c_str());
  return r.first.empty() ? 0 : 1;
}
