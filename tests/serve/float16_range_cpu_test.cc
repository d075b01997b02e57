// float16 holds what its norms' producers store wherever it holds the residual itself.
#include <cmath>

#include "serve/engine.h"
#include "serve/score.h"
#include "tests/support/loud_model.h"

namespace eventide {
namespace {

std::unique_ptr<MegakernelRunner> MakeRunner(const WeightSource& source, DType storage) {
  RunnerOptions options;
  options.backend.device = "cpu";
  options.backend.workers = 2;
  options.storage = storage;
  options.limits.max_rows = 1;
  options.limits.max_tokens = 64;
  options.limits.max_outputs = 64;
  options.limits.max_model_len = 64;
  options.limits.num_blocks = 8;
  auto runner = MegakernelRunner::Create(source, options);
  INFO(runner.status());
  REQUIRE(runner.ok());
  return *std::move(runner);
}

std::vector<TokenScore> Scores(const WeightSource& source, DType storage) {
  const auto runner = MakeRunner(source, storage);
  std::vector<TokenId> tokens;
  for (int i = 0; i < 48; ++i) tokens.push_back(i * 31 % 257);
  const auto scores = ScoreTokens(runner.get(), tokens, 0);
  REQUIRE(scores.ok());
  return *scores;
}

TEST_CASE("a residual within float16's range and gains that leave it give float32's scores") {
  // What the embedding stores for the first norm, unscaled.
  REQUIRE(LoudModel::kResidual * LoudModel::kGain > 65504);
  const LoudModel model;
  const std::vector<TokenScore> exact = Scores(model, DType::kF32),
                                half = Scores(model, DType::kF16),
                                brain = Scores(model, DType::kBF16);
  const auto error = [&](const std::vector<TokenScore>& scores) {
    double worst = 0;
    for (size_t i = 0; i < exact.size(); ++i) {
      REQUIRE(std::isfinite(scores[i].logprob));
      worst = std::max(worst, std::fabs(scores[i].logprob - exact[i].logprob));
    }
    return worst;
  };
  const double half_error = error(half), brain_error = error(brain);
  INFO("float16 " << half_error << ", bfloat16 " << brain_error);
  CHECK(half_error < brain_error);  // it has three bits more
  CHECK(half_error > 0);
}

TEST_CASE("a request of a model whose values are no numbers ends with an error that says so, not with tokens") {
  const LoudModel model(NAN);
  for (const DType storage : {DType::kF16, DType::kBF16, DType::kF32}) {
    const auto runner = MakeRunner(model, storage);
    SteadyClock clock;
    const auto engine = Engine::Create(runner.get(), &clock, {});
    REQUIRE(engine.ok());
    Request request;
    request.id = "loud";
    for (int i = 0; i < 20; ++i) request.prompt.push_back(i * 31 % 257);
    request.sampling.max_tokens = 8;
    RequestOutput last;
    REQUIRE((*engine)->AddRequest(request, [&](const RequestOutput& output) { last = output; }).ok());
    while ((*engine)->HasWork()) REQUIRE((*engine)->Step().ok());
    INFO(DTypeName(storage) << ": " << last.status);
    CHECK(last.finish_reason == FinishReason::kError);
    CHECK(absl::IsDataLoss(last.status));
    CHECK(last.output_tokens == 0);
    for (const int top : {0, 5}) {
      const absl::Status scored = ScoreTokens(MakeRunner(model, storage).get(), request.prompt, top).status();
      CHECK(absl::IsDataLoss(scored));
      CHECK(std::string(scored.message()).starts_with("behind 1 tokens the logits are no numbers"));
    }
  }
}

}  // namespace
}  // namespace eventide
