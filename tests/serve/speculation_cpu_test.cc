// Speculation through the real engine and runner on the CPU.
#include "tests/serve/speculation_case.h"

namespace eventide {
namespace {

TEST_CASE("drafts of the device's own change no token, for every draft length") {
  CheckOwnDrafts("cpu");
}

TEST_CASE("forced drafts, all right, all wrong, wrong at each place and ragged, change no token") {
  CheckForcedDrafts("cpu");
}

TEST_CASE("drafts that are what the target says are all accepted, for 500 tokens") {
  auto runner = MakeDraftRunner({.max_model_len = 560});
  std::vector<Request> requests = SomeRequests(500);
  requests.resize(2);
  const Served plain = Serve(runner.get(), requests, 0);
  for (const uint32_t drafts : {1u, 4u, 16u}) {
    ForcedDrafts forced(runner.get(), requests, plain.tokens, [](Tokens right) { return right; });
    const Served served = Serve(&forced, requests, drafts);
    CHECK(served.tokens == plain.tokens);
    const DraftStats& stats = served.stats.drafts;
    CHECK(stats.accepted == stats.drafted);
    CHECK(stats.tokens == 999);  // of 500 and 501, one each comes with its prompt
    CHECK(stats.rows <= 2 * (500 / (1 + drafts) + 2));
  }
}

TEST_CASE("stop tokens, max_tokens and the model's length end requests in the midst of right drafts") {
  auto runner = MakeDraftRunner({});
  std::vector<Request> requests = SomeRequests(300);  // more than the model's 256 hold
  const Served whole = Serve(runner.get(), requests, 0);
  for (size_t i = 0; i < requests.size(); ++i) {
    const Tokens& said = whole.tokens.at(requests[i].id);
    if (i % 3 == 1) requests[i].sampling.stop_token_ids = {said[20 + i]};
    if (i % 3 == 2) requests[i].sampling.max_tokens = static_cast<uint32_t>(17 + 3 * i);
    if (i == 4) requests[i].sampling.min_tokens = 60;
    // More stop tokens than the device watches for: the host has to see this one.
    if (i == 7) {
      requests[i].sampling.stop_token_ids.insert(requests[i].sampling.stop_token_ids.begin(),
                                                 kMaxStopTokens, Wrong(said[20 + i]));
    }
  }
  const Served plain = Serve(runner.get(), requests, 0);
  CHECK(plain.stats.finished_stop >= 2);
  CHECK(plain.stats.finished_length >= 6);
  for (const uint32_t drafts : {3u, 16u}) {
    ForcedDrafts forced(runner.get(), requests, whole.tokens, [](Tokens right) { return right; });
    const Served served = Serve(&forced, requests, drafts);
    CHECK(served.tokens == plain.tokens);
    CHECK(served.reasons == plain.reasons);
    const Served own = Serve(runner.get(), requests, drafts);
    CHECK(own.tokens == plain.tokens);
    CHECK(own.reasons == plain.reasons);
  }
}

TEST_CASE("requests whose prompts lie in blocks they share say with drafts what they say without") {
  // What the first one said is part of what the next ones begin with.
  auto runner = MakeDraftRunner({});
  const Served whole = Serve(runner.get(), {SomeRequests(60)[3]}, 0);
  std::vector<Request> requests = SomeRequests(50);
  for (size_t i = 0; i < requests.size(); ++i) {
    const Tokens& said = whole.tokens.at("r3");
    requests[i].prompt = SomeRequests(1)[3].prompt;
    requests[i].prompt.insert(requests[i].prompt.end(), said.begin(),
                              said.begin() + static_cast<long>(5 * i));
  }
  const Served plain = Serve(runner.get(), requests, 0);
  ForcedDrafts wrong(runner.get(), requests, plain.tokens, [](Tokens drafts) {
    for (TokenId& token : drafts) token = Wrong(token);
    return drafts;
  });
  for (StepRunner* drafting : {static_cast<StepRunner*>(runner.get()),
                               static_cast<StepRunner*>(&wrong)}) {
    const Served served = Serve(drafting, requests, 11);
    CHECK(served.tokens == plain.tokens);
    CHECK(served.stats.prefix_hit_tokens > 0);
    CHECK(served.stats.drafts.drafted > 0);
  }
}

TEST_CASE("cancelled requests had said what they would have said without drafts") {
  auto runner = MakeDraftRunner({});
  CheckCancelled(runner.get());
}

TEST_CASE("where logits have room for few drafts, rows share it and none goes without its token") {
  const std::vector<Request> requests = SomeRequests(30);
  auto roomy = MakeDraftRunner({});
  const Served plain = Serve(roomy.get(), requests, 0);
  for (const int outputs : {8, 9, 20}) {
    auto runner = MakeDraftRunner({.outputs = outputs});
    const Served served = Serve(runner.get(), requests, 8);
    CHECK(served.tokens == plain.tokens);
    CHECK((served.stats.drafts.drafted > 0) == (outputs > 8));
  }
}

}  // namespace
}  // namespace eventide
