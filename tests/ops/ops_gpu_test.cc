// The decoder's ops on a GPU: the cases of the host backends, for the storage types that GPUs run.
#include "runtime/cuda_executor.h"
#include "tests/ops/attention_case.h"
#include "tests/ops/exit_rows_case.h"
#include "tests/ops/exits_case.h"
#include "tests/ops/experts_case.h"
#include "tests/ops/linear_case.h"
#include "tests/ops/norms_case.h"
#include "tests/ops/pick_case.h"
#include "tests/ops/plan_case.h"
#include "tests/ops/sample_case.h"
#include "tests/support/gpu.h"

namespace eventide {
namespace {

const OpBackend kGpu{"cuda", kCudaBackend, 0, "static"};
const OpBackend kGpuThree{"cuda, 3 workers", kCudaBackend, 3, "ticket"};

TEST_CASE("linears on a GPU agree with float64 for every epilogue") {
  if (!HaveGpu()) return;
  for (const int tokens : {0, 1, 9, 33}) {
    CheckLinear<BF16>({kGpu}, {tokens, 33, 172, true, true, LinearParams::kStore});
    CheckLinear<BF16>({kGpu}, {tokens, 172, 96, false, false, LinearParams::kResidual});
    CheckLinear<F16>({kGpu}, {tokens, 64, 31, true, false, LinearParams::kSiluMul});
    CheckLinear<BF16>({kGpuThree}, {tokens, 257, 400, false, false, LinearParams::kLogits});
  }
}

TEST_CASE("experts on a GPU agree with float64, whatever their number and tokens") {
  if (!HaveGpu()) return;
  for (const int tokens : {0, 1, 8, 9, 33, 70}) {
    ExpertsShape shape{tokens, 16, 4, 192, 96};
    CheckExperts({kGpu, kGpuThree}, ExpertsData<BF16>(shape, 1));
    shape = {tokens, 5, 3, 50, 33, false};
    shape.shared = true;
    CheckExperts({kGpu}, ExpertsData<F16>(shape, 2));
  }
  CheckExperts({kGpu}, ExpertsData<BF16>({11, 512, 8, 64, 16}, 3));
  CheckExperts({kGpu}, ExpertsData<BF16>({12, 16, 16, 64, 32}, 4));
  for (const int count : {0, 1, 31, 32, 33, 64}) {
    ExpertsData<BF16> data({64, 16, 1, 64, 24}, 5);
    Steer(&data, [&](int token, int) { return token < count ? 3 : 4 + token % 12; });
    CheckExperts({kGpu, kGpuThree}, data);
  }
}

TEST_CASE("a token's experts on a GPU have the same bits alone and in company") {
  if (!HaveGpu()) return;
  const ExpertsData<BF16> all({70, 16, 4, 192, 96}, 9);
  const std::vector<float> expected = ExpertsCase<BF16>(kGpu, all).Residual();
  for (const int tokens : {1, 7, 9, 33}) {
    ExpertsData<BF16> some = all;
    some.s.tokens = tokens;
    some.x.resize(static_cast<size_t>(tokens) * 192);
    for (const OpBackend& backend : {kGpu, kGpuThree}) {
      for (const int wave : {0, 2, 1000}) {
        some.s.wave = wave;
        const std::vector<float> bits = ExpertsCase<BF16>(backend, some).Residual();
        REQUIRE(std::memcmp(bits.data(), expected.data(), bits.size() * 4) == 0);
      }
    }
  }
}

TEST_CASE("embedding and final norm on a GPU agree with float64") {
  if (!HaveGpu()) return;
  for (const int tokens : {0, 1, 9, 33}) {
    CheckEmbedding<BF16>(kGpu, tokens, 64, false);
    CheckEmbedding<F16>(kGpuThree, tokens, 172, true);
    CheckFinalNorm<BF16>(kGpu, tokens, 172);
    CheckWideNorm<BF16>(kGpu, tokens, 2, 3, 32);
    CheckFinalNorm<F16>(kGpuThree, tokens, 1030);
  }
}

TEST_CASE("plan on a GPU covers random steps exactly") {
  if (!HaveGpu()) return;
  RandomValues random(1);
  for (int trial = 0; trial < 10; ++trial) {
    PlanShape s;
    s.head_dim = 8 * random.Between(1, 32);
    s.group = random.Between(1, 20);
    s.window = random.Below(3) ? 0 : random.Between(1, 3000);
    if (random.Below(2)) s.long_tokens = random.Between(1, 100);
    s.long_rows = kMaxLongRows;
    INFO("trial " << trial);
    CheckPlan(trial % 2 ? kGpu : kGpuThree, s,
              RandomStep(random, random.Below(s.max_rows + 1), s.max_tokens, 30000));
  }
}

TEST_CASE("attention on a GPU agrees with float64 for odd heads, groups, windows and block sizes") {
  if (!HaveGpu()) return;
  for (const int prompt : {1, 65}) {
    CheckAgainstReference<BF16>(kGpu, {.head_dim = 64, .kv_heads = 1, .group = 7}, prompt);
    CheckAgainstReference<BF16>(kGpuThree, {.head_dim = 80, .kv_heads = 3, .group = 3}, prompt);
    CheckAgainstReference<F16>(
        kGpu, {.head_dim = 56, .kv_heads = 2, .group = 1, .block_size = 4, .qk_norm = true},
        prompt);
    CheckAgainstReference<BF16>(
        kGpu, {.head_dim = 32, .kv_heads = 1, .group = 3, .window = 20, .qk_norm = true}, prompt);
  }
  CheckAgainstReference<BF16>(kGpu, {.head_dim = 8, .kv_heads = 1, .group = 2, .block_size = 1},
                              70);
  CheckAgainstReference<BF16>(kGpu, {.head_dim = 256, .kv_heads = 1, .group = 17}, 20);
  CheckAgainstReference<F16>(
      kGpu, {.head_dim = 128, .kv_heads = 1, .group = 2, .window = 1, .block_size = 64}, 80);
}

TEST_CASE("attention on a GPU has the same bits for any prefill chunk and any number of parts") {
  if (!HaveGpu()) return;
  AttentionShape s{.head_dim = 64, .kv_heads = 2, .group = 3};
  s.sequences = 1;
  s.max_positions = s.max_tokens = 300;
  CheckChunks<BF16>(kGpu, s, 300, {1, 7, 63, 64, 100, 299}, 3);
  s.window = 70;
  s.qk_norm = true;
  CheckChunks<BF16>(kGpu, s, 300, {5, 128}, 3);
  // Tiles of many rows, against those of few: chunks of 64 and of 256 positions, and heads that two warps share.
  for (const AttentionShape& shape :
       {AttentionShape{.head_dim = 128, .kv_heads = 1, .group = 4}, AttentionShape{.head_dim = 256, .kv_heads = 1, .group = 3},
        AttentionShape{.head_dim = 80, .kv_heads = 2, .group = 1, .window = 500, .qk_norm = true}}) {
    AttentionShape m = shape;
    m.sequences = 1;
    m.max_positions = m.max_tokens = 1400;
    CheckChunks<BF16>(kGpu, m, 1400, {61, 1100}, 3);
  }
  for (const int window : {0, 3000}) {
    AttentionShape l{.head_dim = 128, .kv_heads = 1, .group = 4, .window = window};
    l.max_positions = 20010;
    l.max_partials = 0;
    const AttentionData<BF16> data(l, 3);
    l.max_partials = 4096;
    const AttentionData<BF16> split_data(l, 3);
    for (const int context : {640, 1023, 5000, 20000}) {
      INFO("window " << window << ", context " << context);
      const auto whole = LongDecode(kGpu, data, context, 1);
      for (const int workers : {2, 40, 132}) {
        const auto split = LongDecode(kGpu, split_data, context, workers);
        CHECK(SameBits(whole[0], split[0]));
        CHECK(SameBits(whole[1], split[1]));
      }
    }
  }
}

TEST_CASE("sampling on a GPU: exact supports and frequencies, greedy ties to the lower id") {
  if (!HaveGpu()) return;
  RandomValues random(5);
  std::vector<float> logits(257);
  for (float& v : logits) v = static_cast<float>(random.Normal(2.0));
  for (const SampleRow& row : {Sampled(logits, 1.0f, 0, 1.0f), Sampled(logits, 0.7f, 40, 0.9f)}) {
    CHECK(ChiSquare(Draws(kGpu, row, 50000), Exact(row), 50000) < 4.0);
  }
  const std::vector<float> tied = Logs({0.4, 0.3, 0.3, 1e-30});
  CHECK(Support(kGpu, Sampled(tied, 1, 2, 1.0f)) == std::set<int>{0, 1});
  CHECK(Support(kGpu, Sampled(tied, 1, 0, 0.7f)) == std::set<int>{0, 1});
  CHECK(Support(kGpu, Sampled(tied, 1, 0, 0.71f)) == std::set<int>{0, 1, 2});
  CHECK(Support(kGpu, Sampled({NAN, 1.0f, NAN, 1.0f}, 1, 3, 1.0f)) == std::set<int>{1, 3});
  CHECK(Support(kGpu, Sampled({3.0f, 7.0f, 7.0f}, 0, 0, 1.0f)) == std::set<int>{1});
  CheckNoNumber(kGpu);
  std::vector<SampleRow> rows;
  for (int r = 0; r < 12; ++r) {
    std::vector<float> wide(50000);
    for (float& v : wide) v = static_cast<float>(random.Normal(1.0));
    rows.push_back(Sampled(wide, 1.0f, r % 3 ? 500 : 0, r % 2 ? 0.9f : 1.0f, 77));
  }
  const std::vector<StepResult> together = SampleCase(kGpu, rows).Run();
  for (int r = 0; r < 12; ++r) {
    CHECK(SampleCase(kGpuThree, {rows[r]}).Run()[0].tokens[0] == together[r].tokens[0]);
  }
}

TEST_CASE("the ops of early exit on a GPU do what they do on a host") {
  if (!HaveGpu()) return;
  for (const OpBackend& backend : {kGpu, kGpuThree}) {
    for (const int tokens : {0, 1, 3, 9, 50}) {
      CheckExitTest(backend, tokens, 172);
      CheckExitSettle<BF16>(backend, tokens, 172, true);
      CheckExitSettle<F16>(backend, tokens, 33, false);
      CheckExitKeysAndValues<BF16>(backend, tokens, tokens % 2 == 0);
      CheckExitBegin(backend, tokens, 172);
      for (uint64_t seed = 0; seed < 4; ++seed) CheckExitRows(backend, tokens, seed);
    }
  }
}

TEST_CASE("block-sparse attention on a GPU picks the best, and has dense attention's bits where it picks all") {
  if (!HaveGpu()) return;
  for (const int length : {1, 47, 150}) {
    CheckEverythingPicked<BF16>(kGpu, {.head_dim = 64, .block_size = 8}, length);
    CheckEverythingPicked<F16>(kGpuThree, {.head_dim = 128, .group = 4, .block_size = 16, .qk_norm = true}, length);
    CheckFewPicked<BF16>(kGpu, {.head_dim = 64, .block_size = 8}, length, 3);
    CheckFewPicked<BF16>(kGpu, {.head_dim = 128, .group = 4, .block_size = 16, .qk_norm = true}, length, 2);
  }
  CheckPickedBits<BF16>(kGpu, {.head_dim = 64, .group = 4, .block_size = 32}, 200);
}

}  // namespace
}  // namespace eventide
