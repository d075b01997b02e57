// step_campaign SEED STEPS [DEVICE [WORKERS [POLICY]]]: random decode and mixed steps of test-llama in
// bfloat16, two in flight now and then, on all workers of a device (or as many as are said) against one
// worker under `static` on the same device: every token and every logit, to the bit. Prints one line;
// exit code 1 on any difference, error or hang.
#include "tests/support/step_campaign.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "models/load.h"

namespace eventide {
namespace {

int Main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: step_campaign SEED STEPS [DEVICE [WORKERS [POLICY]]]\n");
    return 2;
  }
  StepCampaignOptions options;
  options.plan.seed = std::strtoull(argv[1], nullptr, 10);
  options.plan.sampled = true;
  // Mostly decode: one worker has to keep up.
  options.plan.max_prompt = 700;
  options.plan.max_generated = 300;
  options.steps = std::atoll(argv[2]);
  CampaignRunnerOptions setup;
  setup.plan = options.plan;
  setup.max_tokens = 160;
  // A row that the device has ended has no token, but the host, one step late, counts its output.
  setup.max_outputs = setup.max_tokens + setup.max_rows;
  setup.device = argc > 3 ? argv[3] : "auto";
  const auto source = OpenModel("random:test-llama@5");
  EVT_CHECK(source.ok());
  setup.workers = 1;
  const auto one = MakeCampaignRunner(**source, setup);
  setup.workers = argc > 4 ? std::atoi(argv[4]) : 0;
  setup.policy = argc > 5 ? argv[5] : "ticket";
  const auto many = MakeCampaignRunner(**source, setup);
  for (const auto* runner : {&one, &many}) {
    if (runner->ok()) continue;
    std::fprintf(stderr, "step_campaign: %s\n", runner->status().ToString().c_str());
    return 1;
  }
  const auto start = std::chrono::steady_clock::now();
  const StepCampaignResult r = StepCampaign(one->get(), many->get(), options).Run();
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::printf("step_campaign seed %llu, %s, %d workers %s against 1: %s, %.1f s\n",
              static_cast<unsigned long long>(options.plan.seed), (*many)->device().c_str(),
              (*many)->executor().workers(), setup.policy.c_str(), r.Line().c_str(), seconds);
  if (!r.first.empty()) std::printf("%s\n", r.first.c_str());
  return r.first.empty() ? 0 : 1;
}

}  // namespace
}  // namespace eventide

int main(int argc, char** argv) { return eventide::Main(argc, argv); }
