// Attention rounded the rows of its queries up to 16 and zeroed the rest, which in float32 could
// lie behind the page: 42 rows of 96 floats fit, 48 do not. Whatever the worker kept there, such as
// weights of a later task, became zeros. `eventide stress` found it in the simulator.
#include "stress/stress.h"
#include "tests/support/test.h"

namespace eventide {
namespace {

TEST_CASE("queries of float32 stay within their page, whatever their number of rows") {
  StressOptions options;
  options.device = "sim";
  for (const char* shape : {"head_dim=96 heads=7", "head_dim=96 heads=8", "head_dim=80 heads=7"}) {
    for (int schedule = 1; schedule < 10; ++schedule) {
      const auto c = StressCase::FromText(absl::StrCat(
          "steps block=16 budget=11 chunk=64 dtype=float32 hidden=16 inter=16 kv_heads=1 layers=1 "
          "len=21 outs=1 pages=8 policy=ticket prompts=15 rows=1 text=735 tied=1 vocab=1000 "
          "weights=245 workers=5 schedule=",
          schedule, " ", shape));
      REQUIRE(c.ok());
      const StressResult result = ReplayStress(*c, options);
      INFO(ToJson(result).dump());
      CHECK(result.failures == 0);
    }
  }
}

}  // namespace
}  // namespace eventide
