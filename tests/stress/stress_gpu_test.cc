#include "runtime/cuda_executor.h"
#include "stress/stress.h"
#include "tests/support/gpu.h"
#include "tests/support/test.h"

namespace eventide {
namespace {

TEST_CASE("cases of every kind pass on a GPU") {
  if (!HaveGpu()) return;
  StressOptions options;
  options.device = "cuda";
  options.cases = 24;
  options.seconds = 300;
  options.seed = 5;
  const auto result = RunStress(options);
  REQUIRE(result.ok());
  INFO(ToJson(*result).dump(1));
  CHECK(result->failures == 0);
  CHECK(result->cases == options.cases);
  CHECK(result->compilations_after_ready == 0);
}

}  // namespace
}  // namespace eventide
