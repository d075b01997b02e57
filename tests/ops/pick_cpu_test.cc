// Block-sparse attention on all host backends.
#include "tests/ops/pick_case.h"

namespace eventide {
namespace {

TEST_CASE("where every block is picked, block-sparse attention has dense attention's bits") {
  for (const OpBackend& backend : HostBackends()) {
    for (const int length : {1, 16, 47, 150}) {
      CheckEverythingPicked<BF16>(backend, {.head_dim = 64, .block_size = 8}, length);
      CheckEverythingPicked<float>(
          backend, {.head_dim = 24, .kv_heads = 1, .group = 5, .block_size = 16, .qk_norm = true}, length);
    }
  }
}

TEST_CASE("the best blocks are picked, and attention is over just those and the tail") {
  for (const OpBackend& backend : HostBackends()) {
    for (const int picked : {0, 1, 4}) {
      for (const int length : {3, 31, 129}) {
        CheckFewPicked<BF16>(backend, {.head_dim = 64, .block_size = 8}, length, picked);
        CheckFewPicked<float>(
            backend, {.head_dim = 24, .kv_heads = 1, .group = 5, .block_size = 16, .qk_norm = true}, length,
            picked);
      }
    }
  }
}

TEST_CASE("what a row picks and gets does not depend on company, parts and workers") {
  for (const OpBackend& backend : HostBackends()) {
    CheckPickedBits<BF16>(backend, {.head_dim = 32, .group = 4, .block_size = 32}, 200);
    CheckPickedBits<F16>(backend, {.head_dim = 64, .group = 2, .block_size = 64}, 330);
  }
}

}  // namespace
}  // namespace eventide
