// The real runner under the real engine on the CPU: what it refuses, and that neither batching nor
// preemption nor the prefix cache changes a token.
#include "tests/serve/runner_cases.h"

namespace eventide {
namespace {

TEST_CASE("requests get the same tokens alone, batched and preempted, greedy and sampled") {
  CheckCompany("cpu", DType::kF32);
}

TEST_CASE("logits have the same bits whether a prefix was found in the cache or computed") {
  // Lengths around block boundaries. One by one each finds the longest full blocks of those before
  // it; all together each finds all but the block of its last token.
  for (DType storage : {DType::kF32, DType::kBF16, DType::kF16}) {
    CheckHitBits("cpu", storage, {15, 16, 17, 33, 64, 65, 150}, 20,
                 (0 + 0 + 16 + 16 + 32 + 64 + 64) + (0 + 0 + 16 + 32 + 48 + 64 + 144));
  }
  CheckHitBits("sim", DType::kF32, {17, 32, 40}, 2, (0 + 16 + 32) + (16 + 16 + 32));
}

TEST_CASE(
    "a step of no rows is legal, alone, first, last and between others, and changes nothing") {
  CheckZeroRows("cpu", DType::kF32);
  CheckZeroRows("sim", DType::kF32);
}

TEST_CASE("a runner refuses rows, blocks and tokens that are not there, and goes on working") {
  auto runner = MakeRunner(16, 2);
  const std::vector<TokenId> prompt = {1, 2, 3};
  const auto admit = [&](uint32_t slot, std::vector<TokenId> tokens) {
    SlotAdmission admission;
    admission.slot = slot;
    admission.tokens = tokens;
    admission.max_length = 16;
    return runner->Admit(admission);
  };
  CHECK_FALSE(admit(2, prompt).ok());
  CHECK_FALSE(admit(0, {1, 257}).ok());
  CHECK_FALSE(admit(0, {-1}).ok());
  CHECK_FALSE(admit(0, {}).ok());
  CHECK_FALSE(admit(0, std::vector<TokenId>(300, 1)).ok());
  REQUIRE(admit(0, prompt).ok());
  CHECK_FALSE(admit(0, prompt).ok());

  const std::vector<BlockId> good = {3}, bad = {16};
  const auto submit = [&](std::vector<Row> rows, const std::vector<BlockId>& blocks,
                          uint32_t first) {
    const BlockTableUpdate update{0, first, blocks};
    StepInput input;
    input.rows = rows;
    input.block_updates = {&update, 1};
    return runner->Submit(input);
  };
  const Row row{0, 3, 0, kRowSample};
  CHECK_FALSE(submit({row, row}, good, 0).ok());
  CHECK_FALSE(submit({Row{1, 1, 0, kRowSample}}, good, 0).ok());
  CHECK_FALSE(submit({Row{7, 1, 0, kRowSample}}, good, 0).ok());
  CHECK_FALSE(submit({row}, bad, 0).ok());
  CHECK_FALSE(submit({row}, good, 16).ok());
  CHECK_FALSE(submit({Row{0, 3, 1, kRowSample}}, good, 0).ok());
  CHECK_FALSE(submit({Row{0, 65, 0, kRowNone}}, good, 0).ok());  // beyond the step's 64 tokens
  CHECK_FALSE(runner->Poll().has_value());

  REQUIRE(submit({row}, good, 0).ok());
  const StepOutcome outcome = runner->Wait();
  INFO(outcome.status);
  REQUIRE(outcome.status.ok());
  CHECK(outcome.rows[0].query_length == 3);
  CHECK(outcome.rows[0].tokens.size() == 1);
  CHECK_FALSE(runner->Logits(1, 2).ok());
  runner->Release(0);
  CHECK(admit(0, prompt).ok());
}

}  // namespace
}  // namespace eventide
