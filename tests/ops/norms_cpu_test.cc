// The ops that surround a decoder's layers: embedding in front, final norm behind.
#include "tests/ops/norms_case.h"

namespace eventide {
namespace {

TEST_CASE("embedding copies the history's rows of plain and packed tables") {
  for (const OpBackend& backend : HostBackends()) {
    for (const int tokens : {0, 1, 7, 8, 9, 33}) {
      CheckEmbedding<BF16>(backend, tokens, 64, false);
      CheckEmbedding<BF16>(backend, tokens, 172, true);
      CheckEmbedding<F16>(backend, tokens, 520, true);
      CheckEmbedding<float>(backend, tokens, 16, false);
    }
  }
}

TEST_CASE("the final norm gathers the tokens whose logits are wanted and reads no others") {
  for (const OpBackend& backend : HostBackends()) {
    for (const int outputs : {0, 1, 7, 8, 9, 40}) {
      CheckFinalNorm<BF16>(backend, outputs, 172);
      CheckFinalNorm<F16>(backend, outputs, 1030);
      CheckFinalNorm<float>(backend, outputs, 1030);
    }
  }
}

TEST_CASE("the norm over all heads takes queries and keys for themselves and leaves values alone") {
  for (const OpBackend& backend : HostBackends()) {
    for (const int tokens : {0, 1, 7, 8, 9, 33}) {
      CheckWideNorm<BF16>(backend, tokens, 2, 3, 32);
      CheckWideNorm<F16>(backend, tokens, 1, 1, 56);
      CheckWideNorm<float>(backend, tokens, 3, 2, 8);
    }
  }
}

}  // namespace
}  // namespace eventide
