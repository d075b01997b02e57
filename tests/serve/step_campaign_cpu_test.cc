// Random steps on the CPU backend: what the same campaign holds a GPU to (step_campaign_gpu_test.cc),
// with runners that share bits, runners that differ as storage types do, and planted faults.
#include "tests/support/step_campaign.h"

#include <iostream>

#include "models/load.h"
#include "models/presets.h"
#include "models/random_weights.h"
#include "tests/support/test.h"

namespace eventide {
namespace {

StepPlanOptions SmallPlan(uint64_t seed) {
  StepPlanOptions plan;
  plan.seed = seed;
  plan.max_prompt = 330;
  plan.max_generated = 40;
  return plan;
}

std::unique_ptr<MegakernelRunner> Make(const CampaignRunnerOptions& setup) {
  const auto source = OpenModel("random:test-llama@5");
  REQUIRE(source.ok());
  auto runner = MakeCampaignRunner(**source, setup);
  INFO(runner.status());
  REQUIRE(runner.ok());
  return *std::move(runner);
}

CampaignRunnerOptions Setup(int workers, const std::string& policy, DType storage,
                            const StepPlanOptions& plan) {
  CampaignRunnerOptions setup;
  setup.workers = workers;
  setup.policy = policy;
  setup.storage = storage;
  setup.max_rows = 16;
  setup.max_tokens = 96;
  setup.max_outputs = 96;
  setup.max_model_len = 512;
  setup.plan = plan;
  return setup;
}

StepCampaignResult Run(MegakernelRunner* reference, MegakernelRunner* subject,
                       const StepPlanOptions& plan, int64_t steps, bool exact) {
  StepCampaign campaign(reference, subject, {plan, steps, exact});
  return campaign.Run();
}

TEST_CASE("random steps give the same bits with several workers as with one, two steps in flight") {
  StepPlanOptions plan = SmallPlan(1);
  plan.sampled = true;
  auto one = Make(Setup(1, "static", DType::kBF16, plan));
  auto three = Make(Setup(3, "ticket", DType::kBF16, plan));
  const StepCampaignResult r = Run(one.get(), three.get(), plan, 120, true);
  std::cout << r.Line() << "\n";
  INFO(r.first);
  CHECK(r.first.empty());
  CHECK(r.steps >= 120);
  CHECK(r.distinct_shapes > 100);
  CHECK(r.max_rows >= 9);
  CHECK(r.max_context > 150);
  CHECK(r.tokens > 200);
  // The runners are left as they were found.
  CHECK(Run(one.get(), three.get(), plan, 5, true).first.empty());
}

TEST_CASE("random steps in bfloat16 differ from float32 by the storage type's rounding only") {
  const StepPlanOptions plan = SmallPlan(2);
  auto exact = Make(Setup(2, "static", DType::kF32, plan));
  auto rounded = Make(Setup(2, "static", DType::kBF16, plan));
  const StepCampaignResult r = Run(exact.get(), rounded.get(), plan, 60, false);
  std::cout << r.Line() << "\n";
  INFO(r.first);
  CHECK(r.first.empty());
  CHECK(r.wrong == 0);
  // As in decoder_cpu_test.cc.
  CHECK(r.rms_error < 4 * 0x1p-9);
  CHECK(r.max_error < 25 * 0x1p-9);
  CHECK(r.rms_error > 0.05 * 0x1p-9);
  CHECK(r.flips * 50 <= r.tokens);
}

TEST_CASE("a campaign notices one wrong bit of one weight, and another model") {
  const StepPlanOptions plan = SmallPlan(3);
  auto good = Make(Setup(2, "static", DType::kBF16, plan));
  auto bad = Make(Setup(2, "static", DType::kBF16, plan));
  // The last bit of a weight of the last layer's down projection.
  const Program& program = bad->executor().program();
  int down = -1;
  for (size_t t = 0; t < program.tensors.size(); ++t) {
    if (program.tensors[t].name.find("down") != std::string::npos) down = static_cast<int>(t);
  }
  REQUIRE(down >= 0);
  const Buffer weights = bad->executor().TensorBuffer(down);
  uint16_t word = 0;
  REQUIRE(bad->executor().Read(weights, 0, &word, 2).ok());
  word ^= 1;
  REQUIRE(bad->executor().Write(weights, 0, &word, 2).ok());
  const StepCampaignResult bits = Run(good.get(), bad.get(), plan, 20, true);
  CHECK(bits.wrong == 1);
  CHECK(bits.first.find("seed 3, step ") == 0);
}

TEST_CASE("a campaign of close logits notices another model by errors and flips") {
  const StepPlanOptions plan = SmallPlan(4);
  auto good = Make(Setup(2, "static", DType::kBF16, plan));
  const auto source = OpenModel("random:test-llama@6");
  REQUIRE(source.ok());
  auto other = MakeCampaignRunner(**source, Setup(2, "static", DType::kBF16, plan));
  REQUIRE(other.ok());
  const StepCampaignResult r = Run(good.get(), other->get(), plan, 20, false);
  CHECK(r.first.empty());
  CHECK(r.rms_error > 0.5);
  CHECK(r.flips * 2 > r.tokens);
}

}  // namespace
}  // namespace eventide
