// `score` on random models of even and odd shapes against transformers: goldens, and the recipe for
// the tokens, are those of scripts/goldens/score_goldens.py.
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/escaping.h"
#include "models/load.h"
#include "serve/score.h"
#include "tests/support/test.h"

namespace eventide {
namespace {

const char* const kModels[] = {"test-llama", "test-llama-7-1", "test-llama-9-3", "test-llama-14-2",
                               "test-qwen3", "test-qwen3-9-3", "test-qwen3-14-2"};
// With experts: rounding may exchange two that are nearly equal, in their arithmetic and in ours, at other
// positions. The largest error is then that of such a position.
const char* const kExpertModels[] = {"test-moe", "test-mixtral", "test-qwen2-moe",
                                     "test-olmoe"};
constexpr double kMostOfTheirsExchanged = 2.0;
constexpr size_t kBestEvery = 16;

// Of the error of transformers' arithmetic in the same type; 1.5 would be its equal. Residuals and
// norms that stay in float make it about a half: 1 is where that is lost.
constexpr double kMostOfTheirs = 1.0;

nlohmann::json Golden(const std::string& name) {
  std::ifstream file(SourceFile("tests/golden/score/" + name + ".json"));
  REQUIRE(file.good());
  return nlohmann::json::parse(file);
}

std::vector<double> GoldenLogprobs(const nlohmann::json& golden) {
  std::string bytes;
  REQUIRE(absl::Base64Unescape(golden.at("logprobs").get<std::string>(), &bytes));
  std::vector<double> logprobs;
  for (size_t i = 0; i + 4 <= bytes.size(); i += 4) {
    int32_t fixed;
    std::memcpy(&fixed, bytes.data() + i, 4);
    logprobs.push_back(fixed * 0x1p-27);
  }
  return logprobs;
}

std::vector<std::vector<TokenId>> GoldenTokens(const nlohmann::json& golden, uint32_t vocab) {
  uint64_t state = golden.at("seed").get<uint64_t>();
  std::vector<std::vector<TokenId>> sequences;
  for (int length : golden.at("lengths").get<std::vector<int>>()) {
    std::vector<TokenId> tokens;
    for (int i = 0; i < length; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      tokens.push_back(static_cast<TokenId>((state >> 33) % vocab));
    }
    sequences.push_back(std::move(tokens));
  }
  return sequences;
}

std::vector<TokenScore> Scores(const nlohmann::json& golden, DType storage) {
  const auto source = OpenModel(golden.at("model").get<std::string>());
  INFO(source.status());
  REQUIRE(source.ok());
  RunnerOptions options;
  options.backend.device = "cpu";
  options.backend.workers = 2;
  options.storage = storage;
  options.limits.max_rows = 1;
  options.limits.max_tokens = options.limits.max_outputs = 256;
  options.limits.max_model_len = 1200;
  const auto runner = MegakernelRunner::Create(**source, options);
  INFO(runner.status());
  REQUIRE(runner.ok());
  std::vector<TokenScore> all;
  for (const auto& tokens : GoldenTokens(golden, (*runner)->info().vocab_size)) {
    const auto scores = ScoreTokens(runner->get(), tokens, /*top=*/1);
    INFO(scores.status());
    REQUIRE(scores.ok());
    REQUIRE(scores->size() == tokens.size() - 1);
    all.insert(all.end(), scores->begin(), scores->end());
  }
  return all;
}

// The likeliest token is the reference's, or they are a tie: margins below twice the error.
void CheckBest(const nlohmann::json& best, const std::vector<TokenScore>& scores, double error) {
  REQUIRE(best.size() == (scores.size() + kBestEvery - 1) / kBestEvery);
  for (size_t i = 0; i < best.size(); ++i) {
    const TokenId got = scores[i * kBestEvery].top.at(0).first;
    const double margin = best[i].at(2);
    CAPTURE(i, got, best[i].dump());
    CHECK((got == best[i].at(0) || margin < 2 * error));
  }
}

struct Error {
  double max = 0, rms = 0;
};

Error ErrorOf(const std::vector<TokenScore>& scores, const nlohmann::json& golden) {
  const std::vector<double> expected = GoldenLogprobs(golden);
  REQUIRE(expected.size() >= 2000);
  REQUIRE(scores.size() == expected.size());
  Error error;
  for (size_t i = 0; i < scores.size(); ++i) {
    const double difference = std::fabs(scores[i].logprob - expected[i]);
    REQUIRE(std::isfinite(difference));
    error.max = std::max(error.max, difference);
    error.rms += difference * difference;
  }
  error.rms = std::sqrt(error.rms / static_cast<double>(scores.size()));
  return error;
}

void CheckModel(const std::string& name, DType storage, double most_of_their_max = kMostOfTheirs) {
  const nlohmann::json golden = Golden(name);
  const std::vector<TokenScore> scores = Scores(golden, storage);
  const Error error = ErrorOf(scores, golden);
  const nlohmann::json& theirs = golden.at("transformers").at(DTypeName(storage));
  const double their_max = theirs.at("max"), their_rms = theirs.at("rms");
  CAPTURE(name, DTypeName(storage), error.max, error.rms);
  CAPTURE(error.max / their_max, error.rms / their_rms);
  CHECK(error.max <= most_of_their_max * their_max);
  CHECK(error.rms <= kMostOfTheirs * their_rms);
  CheckBest(golden.at("best"), scores, error.max);
}

TEST_CASE("scores in float32 miss float64 by no more than transformers' float32 does") {
  for (const char* name : kModels) CheckModel(name, DType::kF32);
}

TEST_CASE("scores in bfloat16 miss float64 by no more than transformers' bfloat16 does") {
  for (const char* name : kModels) CheckModel(name, DType::kBF16);
}

TEST_CASE("so do scores of mixtures of experts") {
  for (const char* name : kExpertModels) {
    CheckModel(name, DType::kF32);
    CheckModel(name, DType::kBF16, kMostOfTheirsExchanged);
  }
}

TEST_CASE("weights of another seed do not pass for the right ones") {
  nlohmann::json golden = Golden("test-qwen3");
  const double bound = golden.at("transformers").at("bfloat16").at("rms");
  golden["model"] = "random:test-qwen3@46";
  CHECK(ErrorOf(Scores(golden, DType::kBF16), golden).rms > 50 * bound);
}

TEST_CASE("the log probability of a token does not depend on what comes after it") {
  const nlohmann::json golden = Golden("test-llama-14-2");
  nlohmann::json shorter = golden;
  shorter["lengths"] = {700};
  const std::vector<TokenScore> all = Scores(golden, DType::kBF16);
  const std::vector<TokenScore> some = Scores(shorter, DType::kBF16);
  REQUIRE(some.size() == 699);
  for (size_t i = 0; i < some.size(); ++i) REQUIRE(some[i].logprob == all[i].logprob);
}

TEST_CASE("a probability of 0 has a logarithm that JSON can write, and no number stays none") {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> logits = {1, -kInfinity, 1, -3e38f};
  const TokenScore zero = ScoreLogits(logits, /*token=*/1, /*top=*/4);
  CHECK(zero.logprob == -9999);
  REQUIRE(zero.top.size() == 4);
  CHECK(std::fabs(zero.top[0].second + std::log(2.0)) < 1e-15);
  CHECK(zero.top[2] == std::pair<TokenId, double>(3, -9999));
  CHECK(zero.top[3] == std::pair<TokenId, double>(1, -9999));
  CHECK(ScoreLogits(logits, /*token=*/0, /*top=*/0).logprob == zero.top[0].second);
  for (float none : {std::nanf(""), kInfinity}) CHECK(std::isnan(ScoreLogits(std::vector<float>{1, none}, 1, 1).logprob));
}

}  // namespace
}  // namespace eventide
