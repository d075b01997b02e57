// The same in the simulator, where every step of both models runs under a schedule of its own.
#include "tests/serve/draft_model_case.h"

namespace eventide {
namespace {

TEST_CASE("in the simulator a draft model changes no token") {
  CheckDraftModels("sim", {2, 5}, 8);
}

TEST_CASE("in the simulator a model that drafts for itself is always right") {
  CheckOwnDraftModel("sim", 24, {3});
}

TEST_CASE("in the simulator a draft model's KV is what it computes alone") {
  CheckDraftKv({.device = "sim", .draft_model = DraftModelOptions{.layers = kTargetLayers}}, 4,
               AlikeRequests(9));
}

}  // namespace
}  // namespace eventide
