// SmolLM2-135M-Instruct answers 20 MT-bench questions at once, greedily, on the CPU: the ids are
// those of transformers in float32 on the same dequantised weights
// (scripts/goldens/smollm2_goldens.py).
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "models/load.h"
#include "serve/clock.h"
#include "serve/engine.h"
#include "serve/score.h"
#include "tests/support/models.h"

namespace eventide {
namespace {

struct Question {
  std::vector<TokenId> prompt, answer;
  nlohmann::json margins;  // per answered id: its log probability, the second's, the second's id
};

std::vector<Question> Questions() {
  std::ifstream file(SourceFile("tests/golden/smollm2_greedy.json"));
  REQUIRE(file.good());
  const nlohmann::json golden = nlohmann::json::parse(file);
  std::vector<Question> questions;
  for (size_t i = 0; i < golden.at("prompts").size(); ++i) {
    questions.push_back({golden["prompts"][i].get<std::vector<TokenId>>(),
                         golden.at("answers").at(i).get<std::vector<TokenId>>(),
                         golden.at("margins").at(i)});
    REQUIRE(questions.back().answer.size() == 64);
    REQUIRE(questions.back().margins.size() == 64);
  }
  REQUIRE(questions.size() == 20);
  return questions;
}

std::unique_ptr<MegakernelRunner> MakeRunner(const std::string& path) {
  const auto source = OpenModel(path);
  INFO(source.status());
  REQUIRE(source.ok());
  RunnerOptions options;
  options.backend.device = "cpu";
  options.limits.max_rows = 20;
  options.limits.max_tokens = 256;
  options.limits.max_outputs = 64;
  options.limits.max_model_len = 512;
  auto runner = MegakernelRunner::Create(**source, options);
  INFO(runner.status());
  REQUIRE(runner.ok());
  return std::move(*runner);
}

std::vector<std::vector<TokenId>> AnswerAll(MegakernelRunner* runner,
                                            const std::vector<Question>& questions,
                                            uint64_t* max_batch) {
  SteadyClock clock;
  auto engine = Engine::Create(runner, &clock, {});
  INFO(engine.status());
  REQUIRE(engine.ok());
  std::vector<std::vector<TokenId>> answers(questions.size());
  for (size_t i = 0; i < questions.size(); ++i) {
    Request request;
    request.id = std::to_string(i);
    request.prompt = questions[i].prompt;
    request.sampling.max_tokens = static_cast<uint32_t>(questions[i].answer.size());
    request.sampling.temperature = 0;
    request.sampling.ignore_eos = true;
    const auto take = [&answers, i](const RequestOutput& output) {
      CHECK(output.status.ok());
      answers[i].insert(answers[i].end(), output.tokens.begin(), output.tokens.end());
    };
    REQUIRE((*engine)->AddRequest(request, take).ok());
  }
  while ((*engine)->HasWork()) REQUIRE((*engine)->Step().ok());
  *max_batch = (*engine)->stats().max_batch;
  return answers;
}

// Positions at which another id than the reference's is likeliest given the reference's ids before
// it; each must be a tie: the reference's margin is below twice our error there.
int CountTies(MegakernelRunner* runner, const Question& question) {
  std::vector<TokenId> tokens = question.prompt;
  tokens.insert(tokens.end(), question.answer.begin(), question.answer.end());
  const auto scores = ScoreTokens(runner, tokens, /*top=*/8);
  INFO(scores.status());
  REQUIRE(scores.ok());
  int ties = 0;
  for (size_t i = 0; i < question.answer.size(); ++i) {
    const TokenScore& score = (*scores)[question.prompt.size() + i - 1];
    if (score.top[0].first == question.answer[i]) continue;
    ++ties;
    const double first = question.margins[i].at(0), second = question.margins[i].at(1);
    double error = std::fabs(score.logprob - first);
    for (const auto& [id, logprob] : score.top) {
      if (id == question.margins[i].at(2)) error = std::max(error, std::fabs(logprob - second));
    }
    CAPTURE(i, score.top[0].first, question.margins[i].dump(), error);
    CHECK(first - second < 2 * error);
  }
  return ties;
}

TEST_CASE("SmolLM2 answers 20 questions at once as transformers does one by one") {
  const auto path = SmolLm2Path();
  if (!path) return;
  const std::vector<Question> questions = Questions();
  const auto runner = MakeRunner(*path);
  uint64_t max_batch = 0;
  const auto answers = AnswerAll(runner.get(), questions, &max_batch);
  CHECK(max_batch == questions.size());
  int ties = 0;
  for (size_t i = 0; i < questions.size(); ++i) {
    if (answers[i] == questions[i].answer) continue;
    // Where they part there must be a tie; after it they answer another text.
    const int of_this = CountTies(runner.get(), questions[i]);
    CAPTURE(i, answers[i], questions[i].answer);
    CHECK(of_this > 0);
    ties += of_this;
  }
  INFO("at most 2 % of 20 x 64 positions may be ties");
  CHECK(ties <= 25);
}

}  // namespace
}  // namespace eventide
