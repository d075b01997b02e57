#include "serve/trace.h"

#include <algorithm>
#include <set>

#include "tests/support/test.h"

namespace eventide {
namespace {

const char kCsv[] =
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 23:59:59.5000000,374,44\r\n"
    "2023-11-17 00:00:01,396,0\r\n"
    "\n"
    "2023-11-17T01:00:00.25+01:00,5,6";

TEST_CASE(
    "A CSV trace gives arrival times after the first request, across midnight and time zones") {
  auto trace = ParseTrace(kCsv, "x.csv");
  REQUIRE(trace.ok());
  REQUIRE(trace->requests.size() == 3);
  CHECK(trace->requests[0].arrival_ns == 0);
  CHECK(trace->requests[0].prompt_tokens == 374);
  CHECK(trace->requests[1].prompt_tokens == 5);
  CHECK(trace->requests[1].arrival_ns == 750'000'000);
  CHECK(trace->requests[2].arrival_ns == 1'500'000'000);
  CHECK(ParseTrace(kCsv, "x.csv", 1)->requests.size() == 1);
  auto seconds =
      ParseTrace("TIMESTAMP,ContextTokens,GeneratedTokens\n1.5,1,2\n0.25,3,4\n", "s.csv");
  REQUIRE(seconds.ok());
  CHECK(seconds->requests[1].arrival_ns == 1'250'000'000);
}

TEST_CASE("JSON lines give milliseconds and hash ids") {
  auto trace = ParseTrace(
      R"({"timestamp": 1000, "input_length": 600, "output_length": 5, "hash_ids": [7, 8]}
{"timestamp": 3500, "input_length": 10, "output_length": 6})",
      "m.jsonl");
  REQUIRE(trace.ok());
  CHECK(trace->requests[0].hash_ids == std::vector<uint64_t>{7, 8});
  CHECK(trace->requests[1].arrival_ns == 2'500'000'000);
}

TEST_CASE("Malformed traces are refused with file and line") {
  const std::string header = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
  for (std::string bad :
       {header + "1,2\n", header + "1,2,3\nx,2,3\n", header + "1,-2,3\n", header + "1,2,3.5\n",
        header + "1,99999999999,3\n", header + "nan,2,3\n", header + "1e300,2,3\n",
        header + "2023-13-01 00:00:00,2,3\n", header + "2023-02-30 00:00:00,2,3\n",
        header + "2023-11-16 18:15:46.5+1,2,3\n", header, std::string(), std::string("a,b\n1,2\n"),
        std::string("{\"timestamp\": 0}"),
        std::string("{\"timestamp\": 0, \"input_length\": -1, \"output_length\": 2}"),
        std::string(
            "{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 2, \"hash_ids\": [\"a\"]}"),
        std::string("{\"timestamp\": 0,"), std::string("{}\n\xff\xfe{")}) {
    auto trace = ParseTrace(bad, "bad.csv");
    INFO(bad);
    REQUIRE_FALSE(trace.ok());
    CHECK(std::string(trace.status().message()).find("bad.csv") != std::string::npos);
  }
  auto trace = ParseTrace(header + "1,2,3\nx,2,3\n", "bad.csv");
  CHECK(std::string(trace.status().message()).find("line 3") != std::string::npos);
  CHECK(absl::IsNotFound(ReadTrace("/nowhere/trace.csv").status()));
}

TEST_CASE("Lengths are scaled by one factor, and only if the longest does not fit") {
  auto trace = ParseTrace(kCsv, "x.csv");
  REQUIRE(trace.ok());
  Trace fits = *trace;
  CHECK(*FitTrace(&fits, 418) == 1.0);
  CHECK(fits.requests[0].prompt_tokens == 374);
  CHECK(fits.requests[2].output_tokens == 1);  // an answer has at least one token
  Trace scaled = *trace;
  CHECK(*FitTrace(&scaled, 209) == 0.5);
  CHECK(scaled.requests[0].prompt_tokens == 187);
  CHECK(scaled.requests[0].output_tokens == 22);
  CHECK(scaled.requests[1].prompt_tokens == 2);
  CHECK(scaled.requests[1].output_tokens == 3);
  for (uint64_t length = 2; length < 420; ++length) {
    Trace any = *trace;
    REQUIRE(FitTrace(&any, length).ok());
    for (const TraceRequest& r : any.requests) {
      REQUIRE((r.prompt_tokens >= 1 && r.output_tokens >= 1));
      REQUIRE(r.prompt_tokens + r.output_tokens <= length);
    }
  }
  CHECK_FALSE(FitTrace(&scaled, 1).ok());
}

TEST_CASE("Synthetic prompts are reproducible, differ by request and avoid special tokens") {
  auto trace = ParseTrace(kCsv, "x.csv");
  REQUIRE(trace.ok());
  auto prompts = PromptSynthesizer::Create(50, std::vector<TokenId>{0, 1, 2, 49, 1000});
  auto again = PromptSynthesizer::Create(50, std::vector<TokenId>{0, 1, 2, 49});
  auto other = PromptSynthesizer::Create(50, std::vector<TokenId>{0, 1, 2, 49}, 1);
  REQUIRE((prompts.ok() && again.ok() && other.ok()));
  std::vector<TokenId> a = prompts->Prompt(*trace, 0), b = prompts->Prompt(*trace, 2);
  CHECK(a.size() == 374);
  CHECK(a == again->Prompt(*trace, 0));
  CHECK(a != other->Prompt(*trace, 0));
  CHECK(std::vector<TokenId>(a.begin(), a.begin() + 50) !=
        std::vector<TokenId>(b.begin(), b.begin() + 50));
  std::set<TokenId> used(a.begin(), a.end());
  CHECK(*used.begin() >= 3);
  CHECK(*used.rbegin() <= 48);
  CHECK(used.size() > 40);
  CHECK_FALSE(PromptSynthesizer::Create(2, std::vector<TokenId>{0, 1}).ok());
}

TEST_CASE("Equal hash ids give equal blocks wherever they stand, also after scaling") {
  auto trace = ParseTrace(
      R"({"timestamp": 0, "input_length": 1500, "output_length": 5, "hash_ids": [1, 2, 3]}
{"timestamp": 1, "input_length": 1400, "output_length": 6, "hash_ids": [1, 2, 4]}
{"timestamp": 2, "input_length": 1024, "output_length": 6, "hash_ids": [9, 1]})",
      "m.jsonl");
  REQUIRE(trace.ok());
  auto prompts = PromptSynthesizer::Create(1000, {});
  REQUIRE(prompts.ok());
  auto common = [&](const Trace& t, uint64_t x, uint64_t y) {
    std::vector<TokenId> a = prompts->Prompt(t, x), b = prompts->Prompt(t, y);
    auto end = a.begin() + static_cast<std::ptrdiff_t>(std::min(a.size(), b.size()));
    return static_cast<uint64_t>(std::mismatch(a.begin(), end, b.begin()).first - a.begin());
  };
  CHECK(common(*trace, 0, 1) >= 1024);
  CHECK(common(*trace, 0, 1) < 1030);
  CHECK(common(*trace, 0, 2) < 5);
  std::vector<TokenId> a = prompts->Prompt(*trace, 0), c = prompts->Prompt(*trace, 2);
  CHECK(std::equal(a.begin(), a.begin() + 512, c.begin() + 512));
  Trace scaled = *trace;
  REQUIRE(*FitTrace(&scaled, 301) == Approx(0.2));
  CHECK(common(scaled, 0, 1) >= 205);  // 1024 x 0.2 = 204.8
  CHECK(common(scaled, 0, 1) < 210);
  // Whatever the scale, two prompts share what they shared, to the token.
  for (uint64_t length : {2u, 3u, 17u, 100u, 777u, 1000u}) {
    scaled = *trace;
    REQUIRE(FitTrace(&scaled, length).ok());
    const uint64_t shared = (1024 * length + 1504) / 1505;
    const uint64_t shorter =
        std::min(scaled.requests[0].prompt_tokens, scaled.requests[1].prompt_tokens);
    CHECK(common(scaled, 0, 1) >= std::min(shared, shorter));
    if (length >= 100) CHECK(common(scaled, 0, 1) < shared + 6);
  }
}

TEST_CASE("A line may carry a priority, of 32 bits") {
  const std::string begin =
      R"({"timestamp": 0, "input_length": 5, "output_length": 5, "priority": )";
  CHECK(ParseTrace(begin + "-3}", "t")->requests[0].priority == -3);
  for (const char* bad : {"1.5}", "\"1\"}", "2147483648}", "null}"}) {
    CHECK_FALSE(ParseTrace(begin + bad, "t").ok());
  }
}

TEST_CASE("The sample trace of the repository fits a small model") {
  auto trace = ReadTrace(SourceFile("data/traces/sample_200.csv"));
  REQUIRE(trace.ok());
  CHECK(trace->requests.size() == 200);
  CHECK(trace->requests.back().arrival_ns > 30'000'000'000);
  for (const TraceRequest& r : trace->requests) {
    CHECK((r.prompt_tokens >= 1 && r.prompt_tokens <= 200));
    CHECK((r.output_tokens >= 1 && r.output_tokens <= 48));
  }
}

TEST_CASE("The published Azure and Mooncake traces are read whole") {
  auto azure = TestData("traces/azure2023_conv.csv");
  auto mooncake = TestData("traces/mooncake_conversation.jsonl");
  if (!azure || !mooncake) return Skip("no traces in EVENTIDE_TEST_DATA");
  auto a = ReadTrace(*azure);
  REQUIRE(a.ok());
  CHECK(a->requests.size() == 19366);
  auto m = ReadTrace(*mooncake);
  REQUIRE(m.ok());
  CHECK(m->requests.size() == 12031);
  REQUIRE(*FitTrace(&*m, 2048) < 1);
  for (const TraceRequest& r : m->requests) REQUIRE(r.prompt_tokens + r.output_tokens <= 2048);
}

}  // namespace
}  // namespace eventide
