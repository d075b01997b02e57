// Speculation under random schedules: drafts that are right, wrong and anything between, on the whole
// decoder with real ops.
#include "tests/support/draft_histories.h"
#include "tests/support/test.h"

namespace eventide {
namespace {

TEST_CASE("2,000 random histories with drafts leave tokens and KV as a run without them does") {
  const DraftCampaignResult result = RunDraftCampaign(1, 2000, 50);
  INFO(result.first);
  CHECK(result.histories == 2000);
  CHECK(result.failures == 0);
  // They do try what they are meant to.
  CHECK(result.steps > 10000);
  CHECK(result.accepted > 10000);
  CHECK(result.rejected_rows > 5000);
  CHECK(result.ended_early > 100);
}

}  // namespace
}  // namespace eventide
