// Random steps of models on a GPU: against the CPU backend, and against one worker on the same card.
#include "tests/support/step_campaign.h"

#include <cmath>
#include <iostream>

#include "models/load.h"
#include "tests/support/gpu.h"
#include "tests/support/test.h"

namespace eventide {
namespace {

std::unique_ptr<MegakernelRunner> Make(const std::string& model, CampaignRunnerOptions setup,
                                       const std::string& device) {
  const auto source = OpenModel(model);
  REQUIRE(source.ok());
  setup.device = device;
  auto runner = MakeCampaignRunner(**source, setup);
  INFO(runner.status());
  REQUIRE(runner.ok());
  return *std::move(runner);
}

// Both backends round activations to bfloat16 at the same places, and are off by its rounding from what
// exact arithmetic would give (bounds as in decoder_cpu_test.cc). So they differ by at most both errors,
// which are independent: sqrt(2) times the RMS, and twice the worst. Where the margin between two tokens
// is below that they may choose differently: at most in 2 of 100 places.
void CheckAgainstCpu(const std::string& model, int layers, const CampaignRunnerOptions& setup,
                     int64_t steps) {
  const auto cpu = Make(model, setup, "cpu"), gpu = Make(model, setup, "cuda");
  const StepCampaignResult r =
      StepCampaign(cpu.get(), gpu.get(), {setup.plan, steps, /*exact=*/false}).Run();
  std::cout << model << ", cuda against cpu: " << r.Line() << "\n";
  INFO(r.first);
  CHECK(r.first.empty());
  CHECK(r.steps == steps);
  CHECK(r.wrong == 0);
  // Those bounds are of 4 layers; roundings of more add up like independent ones.
  const double deeper = std::sqrt(layers / 4.0);
  CHECK(r.rms_error < 1.5 * 4 * 0x1p-9 * deeper);
  CHECK(r.max_error < 2 * 25 * 0x1p-9 * deeper);
  CHECK(r.flips <= 1 + r.tokens / 50);
}

TEST_CASE("220 random steps of test-llama on a GPU have the CPU backend's tokens, near-ties aside") {
  if (!HaveGpu()) return;
  CampaignRunnerOptions setup;
  setup.plan.seed = 20;
  CheckAgainstCpu("random:test-llama@5", 4, setup, 220);
}

TEST_CASE("a few steps of llama-3.2-1b on a GPU have the CPU backend's tokens, near-ties aside") {
  if (!HaveGpu()) return;
  CampaignRunnerOptions setup;
  setup.plan.seed = 21;
  setup.plan.max_prompt = 24;
  setup.plan.max_generated = 8;
  setup.max_rows = 6;
  setup.max_tokens = setup.max_outputs = 24;
  setup.max_model_len = 128;
  CheckAgainstCpu("random:llama-3.2-1b", 16, setup, 16);
}

// bench/step_campaign does the same for as long as one likes.
TEST_CASE("random steps on a GPU have the same bits on all workers as on one") {
  if (!HaveGpu()) return;
  const std::string model = "random:test-llama@5";
  CampaignRunnerOptions setup;
  setup.plan.sampled = true;
  setup.workers = 1;
  const auto one = Make(model, setup, "cuda");
  for (const char* policy : {"static", "ticket"}) {
    setup.workers = 0;
    setup.policy = policy;
    setup.plan.seed += 1;
    const auto all = Make(model, setup, "cuda");
    const StepCampaignResult r =
        StepCampaign(one.get(), all.get(), {setup.plan, 1500, /*exact=*/true}).Run();
    std::cout << model << ", cuda, " << all->executor().workers() << " workers " << policy
              << " against 1: " << r.Line() << "\n";
    INFO(r.first);
    CHECK(r.first.empty());
    CHECK(r.max_rows == 64);
    CHECK(r.max_context > 1024);
  }
}

}  // namespace
}  // namespace eventide
