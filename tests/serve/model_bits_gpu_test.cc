// Hashes of a whole model's logits on a GPU: each sequence alone and in batches of 2 to 64, under both
// policies, on all of the card's workers, one less, about half, seven and one, in any prefill chunk.
#include "tests/support/model_bits.h"

#include <iostream>

#include "models/random_weights.h"
#include "tests/support/gpu.h"
#include "tests/support/step_campaign.h"
#include "tests/support/team_config.h"
#include "tests/support/test.h"

namespace eventide {
namespace {

std::unique_ptr<MegakernelRunner> Make(const ModelConfig& config, int workers, const std::string& policy) {
  CampaignRunnerOptions setup;
  setup.device = "cuda";
  setup.workers = workers;
  setup.policy = policy;
  auto runner = MakeCampaignRunner(*RandomWeights(config, 5), setup);
  INFO(runner.status());
  REQUIRE(runner.ok());
  return *std::move(runner);
}

// few: workers and policies; batches and chunks are all.
void CheckBits(const std::string& model, const ModelConfig& config, bool few) {
  const auto sequences = BitsSequences(64, 257, 3, 8);
  const auto all = Make(config, 0, "static");
  std::vector<SequenceHashes> alone;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const auto hashes = RunForHashes(all.get(), sequences, {i}, {.fixed = 1 << 20});
    INFO(hashes.status());
    REQUIRE(hashes.ok());
    alone.push_back((*hashes)[0]);
  }
  const int most = all->executor().workers();
  BitsResult result;
  uint64_t seed = 1;
  const auto check = [&](MegakernelRunner* runner, const std::string& policy,
                         const std::vector<int>& sizes, const std::vector<int>& chunks) {
    const std::string name = std::to_string(runner->executor().workers()) + " workers " + policy;
    CheckBatches(runner, name, sequences, alone, sizes, chunks, ++seed, &result);
  };
  // 0 is chunks of any length, 1 decode, the last whole sequences (as far as a step's tokens go).
  check(all.get(), "static", {1, 2, 3, 8, 17, 40, 64}, {0, 1, 7, 16, 33, 64, 100, 1 << 20});
  for (const int workers : {most, most - 1, 6 * most / 11, 7, 1}) {
    if (few && workers != 7) continue;
    for (const char* policy : {"static", "ticket"}) {
      const auto runner = Make(config, std::max(1, workers), policy);
      check(runner.get(), policy, {5, 64}, {0, 1 << 20});
      check(runner.get(), policy, {9}, {1});
    }
  }
  std::cout << "bits of " << model << " on " << most << " workers and fewer: " << result.runs << " runs, "
            << result.positions << " positions, " << result.wrong << " wrong\n";
  INFO(result.first);
  CHECK(result.wrong == 0);
  CHECK(result.first.empty());
  CHECK(result.runs == 56 + (few ? 1 : 5) * 2 * 5);
}

TEST_CASE("on a GPU logits have the same bits in any batch, chunk, policy and number of workers") {
  if (!HaveGpu()) return;
  CheckBits("test-llama", *PresetConfig("test-llama"), false);
}

TEST_CASE("so they have where tasks work in teams") {
  if (!HaveGpu()) return;
  CheckBits("a decoder of teams", TeamConfig(), true);
}

}  // namespace
}  // namespace eventide
