// A short part of bench/serve_campaign: all that the device decides, in one process.
#include "tests/support/serve_campaign.h"

#include <iostream>

#include "tests/support/test.h"

namespace eventide {
namespace {

TEST_CASE("early exit, experts, drafts of both kinds, prefill and decode in one process say what each says alone") {
  ServeCampaignOptions options;
  const ServeCampaignResult r = ServeCampaign(options).Run();
  std::cout << r.Line() << "\n";
  CHECK(r.first == "");
  CHECK(r.compilations_after_ready == 0);
  // That things happened.
  CHECK(r.steps >= options.steps);
  CHECK(r.full_steps > 50);
  CHECK(r.requests > 30);
  CHECK(r.drafted > 50);
  CHECK(r.accepted > 0);
  CHECK(r.preemptions > 0);
  CHECK(r.prefix_hits > 0);
  CHECK(r.accepted < r.drafted);
  CHECK(r.token_layers < r.most_token_layers);
  CHECK(r.idle_exits == 0);
}

TEST_CASE("a campaign notices a token that is not the request's own") {
  ServeCampaignOptions options;
  options.plant = true;
  CHECK(ServeCampaign(options).Run().first.find("alone") != std::string::npos);
}

}  // namespace
}  // namespace eventide
