// Paged attention against float64, and its bits: the same for any cut of a prompt into steps, any
// company in the batch, any number of parts.
#include "tests/ops/attention_case.h"

namespace eventide {
namespace {

const OpBackend kCpu{"cpu", BestCpuIsa(), 1, "static"};

TEST_CASE("attention agrees with float64 for odd heads, groups, windows and block sizes") {
  for (const OpBackend& backend : HostBackends()) {
    for (const int prompt : {1, 16, 65}) {
      CheckAgainstReference<BF16>(backend, {.head_dim = 64, .kv_heads = 1, .group = 7}, prompt);
      CheckAgainstReference<BF16>(backend, {.head_dim = 80, .kv_heads = 3, .group = 3}, prompt);
      CheckAgainstReference<F16>(
          backend, {.head_dim = 56, .kv_heads = 2, .group = 1, .block_size = 4, .qk_norm = true},
          prompt);
      CheckAgainstReference<float>(
          backend, {.head_dim = 32, .kv_heads = 1, .group = 3, .window = 20, .qk_norm = true},
          prompt);
    }
    CheckAgainstReference<BF16>(backend,
                                {.head_dim = 8, .kv_heads = 1, .group = 2, .block_size = 1}, 70);
    CheckAgainstReference<BF16>(backend, {.head_dim = 256, .kv_heads = 1, .group = 17}, 20);
    CheckAgainstReference<float>(
        backend, {.head_dim = 256, .kv_heads = 1, .group = 2, .block_size = 64}, 40);
    CheckAgainstReference<BF16>(backend, {.head_dim = 128, .kv_heads = 1, .group = 2, .window = 1},
                                30);
  }
}

TEST_CASE("attention has the same bits for every chunk of prefill from 1 to whole") {
  std::vector<int> chunks;
  for (int chunk = 1; chunk < 70; ++chunk) chunks.push_back(chunk);
  for (const int window : {0, 33}) {
    AttentionShape s{.head_dim = 16, .kv_heads = 1, .group = 3, .window = window, .block_size = 8};
    s.sequences = 1;
    s.max_positions = s.max_tokens = 70;
    s.qk_norm = window > 0;
    for (const int long_tokens : {-1, 0, 5}) {
      s.long_tokens = long_tokens;
      CheckChunks<BF16>(kCpu, s, 70, chunks, 5);
    }
  }
  AttentionShape s{.head_dim = 32, .kv_heads = 2, .group = 2};
  s.sequences = 1;
  s.max_positions = s.max_tokens = 300;
  CheckChunks<float>(kCpu, s, 300, {1, 63, 64, 100, 299}, 5);
  s.max_positions = s.max_tokens = 1600;  // chunks of 64 and of 256 positions
  s.kv_heads = 1;
  CheckChunks<BF16>(kCpu, s, 1600, {37, 1023, 1024, 1025}, 5);
}

TEST_CASE("attention of a long context has the same bits split into parts and whole") {
  for (const int window : {0, 3000}) {
    for (const int context : {640, 1023, 5000, 20000}) {
      INFO("window " << window << ", context " << context);
      AttentionShape s{.head_dim = 16, .kv_heads = 1, .group = 2, .window = window};
      s.max_positions = 20010;
      s.max_partials = 0;
      const AttentionData<BF16> data(s, 3);
      s.max_partials = 4096;
      const AttentionData<BF16> split_data(s, 3);
      const auto whole = LongDecode(kCpu, data, context, 1);
      for (const int workers : {2, 7, 40}) {
        INFO(workers << " workers");
        const auto split = LongDecode(kCpu, split_data, context, workers);
        CHECK(SameBits(whole[0], split[0]));
        CHECK(SameBits(whole[1], split[1]));
      }
    }
  }
}

}  // namespace
}  // namespace eventide
