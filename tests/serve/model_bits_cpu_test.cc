// Hashes of whole models' logits on the CPU backend: what model_bits_gpu_test.cc does to a GPU, and its
// negative control.
#include "tests/support/model_bits.h"

#include <iostream>

#include "models/load.h"
#include "tests/support/step_campaign.h"
#include "tests/support/test.h"

namespace eventide {
namespace {

std::unique_ptr<MegakernelRunner> Make(int workers, const std::string& policy) {
  CampaignRunnerOptions setup;
  setup.workers = workers;
  setup.policy = policy;
  setup.max_rows = 16;
  setup.max_tokens = setup.max_outputs = 300;
  const auto source = OpenModel("random:test-llama@5");
  REQUIRE(source.ok());
  auto runner = MakeCampaignRunner(**source, setup);
  INFO(runner.status());
  REQUIRE(runner.ok());
  return *std::move(runner);
}

std::vector<SequenceHashes> Alone(MegakernelRunner* runner,
                                  const std::vector<std::vector<TokenId>>& sequences) {
  std::vector<SequenceHashes> alone;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const auto hashes = RunForHashes(runner, sequences, {i}, {.fixed = 1 << 20});
    INFO(hashes.status());
    REQUIRE(hashes.ok());
    REQUIRE((*hashes)[0].size() == sequences[i].size());
    alone.push_back((*hashes)[0]);
  }
  return alone;
}

TEST_CASE("every position's logits have one hash in any batch, chunk, policy and number of workers") {
  const auto sequences = BitsSequences(15, 257, 0, 8);
  auto one = Make(1, "static");
  const std::vector<SequenceHashes> alone = Alone(one.get(), sequences);
  BitsResult result;
  CheckBatches(one.get(), "1 static", sequences, alone, {2, 15}, {0}, 1, &result);
  auto three = Make(3, "ticket");
  CheckBatches(three.get(), "3 ticket", sequences, alone, {7}, {0, 5}, 2, &result);
  std::cout << "cpu: " << result.runs << " runs, " << result.positions << " positions, "
            << result.wrong << " wrong\n";
  INFO(result.first);
  CHECK(result.wrong == 0);
  CHECK(result.first.empty());
  CHECK(result.positions > 1000);
}

TEST_CASE("another token changes the hashes from its position on, and the check says where") {
  auto sequences = BitsSequences(5, 257, 0, 9);
  auto runner = Make(2, "static");
  const std::vector<SequenceHashes> alone = Alone(runner.get(), sequences);
  const size_t position = 3;
  sequences[4][position] = (sequences[4][position] + 1) % 257;
  BitsResult result;
  CheckBatches(runner.get(), "2 static", sequences, alone, {5}, {0}, 1, &result);
  CHECK(result.wrong == static_cast<int64_t>(sequences[4].size() - position));
  CHECK(result.first == "2 static, batch of 5, chunk 0: sequence 4, position 3");
}

}  // namespace
}  // namespace eventide
