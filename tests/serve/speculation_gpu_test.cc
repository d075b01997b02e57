// The same on a GPU, where two steps are in flight: lengths of the second are decided by the first.
#include "tests/serve/draft_model_case.h"
#include "tests/support/gpu.h"

namespace eventide {
namespace {

TEST_CASE("on a GPU drafts of the device's own change no token, for every draft length") {
  if (HaveGpu()) CheckOwnDrafts("cuda");
}

TEST_CASE("on a GPU forced drafts, right, wrong and anything between, change no token") {
  if (HaveGpu()) CheckForcedDrafts("cuda");
}

// Two steps in flight: the draft model's steps for the second are queued before the first has told how many
// of its drafts were right.
TEST_CASE("on a GPU a draft model, half right or of another seed, changes no token") {
  if (HaveGpu()) CheckDraftModels("cuda", {1, 2, 5, 16}, 40);
}

TEST_CASE("on a GPU a model that drafts for itself is always right, for 500 greedy tokens") {
  if (HaveGpu()) CheckOwnDraftModel("cuda", 500, {1, 4, 16});
}

TEST_CASE("on a GPU a draft model's KV is what it computes alone, after preemption too") {
  if (!HaveGpu()) return;
  const DraftModelOptions same = {.layers = kTargetLayers};
  CheckDraftKv({.device = "cuda", .draft_model = same}, 4, AlikeRequests(60));
  EngineOptions engine;
  engine.max_prefill_chunk = 7;
  const Served served = CheckDraftKv({.device = "cuda", .num_blocks = 64, .draft_model = same}, 5,
                                     AlikeRequests(100), engine);
  CHECK(served.stats.preemptions > 0);
}

TEST_CASE("on a GPU sequences outgrow a draft model of few positions, with two steps in flight") {
  if (!HaveGpu()) return;
  const std::vector<Request> requests = SomeRequests(60);
  const Served plain = Serve(MakeDraftRunner({.device = "cuda"}).get(), requests, 0);
  for (const int positions : {20, 41, 64}) {
    const DraftModelOptions model = {.layers = kTargetLayers, .max_positions = positions};
    auto runner = MakeDraftRunner({.device = "cuda", .num_blocks = 100, .draft_model = model});
    CHECK(Serve(runner.get(), requests, 4).tokens == plain.tokens);
    CHECK(Serve(runner.get(), requests, 9, 0.1).stats.finished_abort > 0);
  }
}

}  // namespace
}  // namespace eventide
