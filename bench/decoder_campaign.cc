// decoder_campaign SEED SCHEDULES [one_lane|reserve]: schedules of real decoders in the simulator,
// as many for each of the models, beyond what the tests run. Prints one line; exit code 1 on any
// failure.
#include "tests/support/decoder_campaign.h"

#include <cstdio>
#include <cstdlib>
#include <string>

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: decoder_campaign SEED SCHEDULES [one_lane|reserve]\n");
    return 2;
  }
  const std::string control = argc > 3 ? argv[3] : "";
  eventide::SimControls controls;
  controls.one_page_lane = control == "one_lane" || control == "reserve";
  controls.reserve_then_wait = control == "reserve";
  const eventide::DecoderCampaignResult r = eventide::RunDecoderCampaign(
      std::strtoull(argv[1], nullptr, 10), std::atoi(argv[2]), 20, controls);
  std::printf("schedules %lld split %lld switches %lld deadlocks %lld wrong %lld errors %lld\n",
              static_cast<long long>(r.schedules), static_cast<long long>(r.split),
              static_cast<long long>(r.switches), static_cast<long long>(r.deadlocks),
              static_cast<long long>(r.wrong_values), static_cast<long long>(r.other_errors));
  if (!r.first.empty()) std::printf("%s\n", r.first.c_str());
  return r.first.empty() ? 0 : 1;
}
