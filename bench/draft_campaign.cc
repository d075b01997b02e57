// draft_campaign SEED HISTORIES: random lives of sequences with drafts in the simulator, beyond what the
// tests run. Prints one line; exit code 1 on any failure.
#include <cstdio>
#include <cstdlib>

#include "tests/support/draft_histories.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: draft_campaign SEED HISTORIES\n");
    return 2;
  }
  const eventide::DraftCampaignResult r =
      eventide::RunDraftCampaign(std::strtoull(argv[1], nullptr, 10), std::atoi(argv[2]), 50);
  std::printf("histories %lld steps %lld drafted %lld accepted %lld failures %lld\n",
              static_cast<long long>(r.histories), static_cast<long long>(r.steps),
              static_cast<long long>(r.drafted), static_cast<long long>(r.accepted),
              static_cast<long long>(r.failures));
  if (!r.first.empty()) std::printf("%s\n", r.first.c_str());
  return r.failures == 0 ? 0 : 1;
}
