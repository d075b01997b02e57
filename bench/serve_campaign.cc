// serve_campaign SEED STEPS [DEVICE [WORKERS]]: early exit, experts, drafts of both kinds, prefill and decode of
// random requests in one process, against each request alone. Prints one line; exit code 1 on any failure.
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "tests/support/serve_campaign.h"

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: serve_campaign SEED STEPS [DEVICE [WORKERS]]\n");
    return 2;
  }
  eventide::ServeCampaignOptions options;
  options.seed = std::strtoull(argv[1], nullptr, 10);
  options.steps = std::atoll(argv[2]);
  if (argc > 3) options.device = argv[3];
  options.workers = argc > 4 ? std::atoi(argv[4]) : options.device == "cuda" ? 0 : 3;
  const auto start = std::chrono::steady_clock::now();
  const eventide::ServeCampaignResult r = eventide::ServeCampaign(options).Run();
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::printf("serve_campaign seed %llu on %s: %s, %.1f s\n",
              static_cast<unsigned long long>(options.seed), options.device.c_str(), r.Line().c_str(), seconds);
  return r.first.empty() ? 0 : 1;
}
