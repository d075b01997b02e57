// The binary as a user calls it: exit codes, what goes to stdout, and results that can be checked.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "models/presets.h"
#include "models/random_weights.h"
#include "stress/reference.h"
#include "tests/support/models.h"
#include "tests/support/run_binary.h"
#include "tests/support/test.h"

namespace eventide {
namespace {

using Json = nlohmann::json;

std::string TempFile(const std::string& name, const std::string& content) {
  const auto path = std::filesystem::temp_directory_path() /
                    ("eventide_" + std::to_string(getpid()) + "_" + name);
  std::ofstream(path) << content;
  return path.string();
}

const std::string kTiny =
    "--model random:test-llama@5 --device cpu --workers 2 --max-num-seqs 4 --max-model-len 128 ";

TEST_CASE("exit codes tell bad usage from failure, and stdout stays empty for both") {
  if (Missing()) return;
  for (const char* usage :
       {"", "nonsense", "generate", "generate --model random:test-llama",
        "generate --model random:test-llama --tokens 1 --prompt x",
        "generate --model random:test-llama --tokens 1,x",
        "generate --model random:test-llama --prompt x", "inspect --model random:test-llama",
        "generate --model random:test-llama --tokens 1 --dtype int8"}) {
    INFO(usage);
    const Ran ran = Run(usage);
    CHECK(ran.code == 2);
    CHECK(ran.out.empty());
  }
  for (const char* failure :
       {"generate --model /no/such/model --tokens 1", "generate --model /no/such/folder --tokens 1",
        "replay --model random:test-llama --trace /no/such/file"}) {
    INFO(failure);
    const Ran ran = Run(failure);
    CHECK(ran.code == 1);
    CHECK(ran.out.empty());
  }
}

TEST_CASE("the flag --version names the version that CMake gives the project") {
  if (Missing()) return;
  std::ifstream file(SourceFile("CMakeLists.txt"));
  std::stringstream content;
  content << file.rdbuf();
  const std::string cmake = content.str();
  const size_t at = cmake.find("VERSION ", cmake.find("project(Eventide"));
  const std::string version = cmake.substr(at + 8, cmake.find(' ', at + 8) - at - 8);
  const Ran ran = Run("--version");
  CHECK(ran.code == 0);
  const std::string expected = "eventide " + version;
  CHECK(ran.out.substr(0, expected.size()) == expected);
  CHECK(std::count(ran.out.begin(), ran.out.end(), '\n') == 1);
}

TEST_CASE("seeds go up to 2^64 - 1, and --top to the model's vocabulary") {
  if (Missing()) return;
  CHECK(Run("generate " + kTiny + "--tokens 1 --max-tokens 1 --seed 18446744073709551615").code ==
        0);
  CHECK(Run("score " + kTiny + "--top 257 --input /dev/null").code == 0);
  CHECK(Run("score " + kTiny + "--top 258 --input /dev/null").code == 2);
}

TEST_CASE("a folder in the place of an input file is a failure that is told, not a crash") {
  if (Missing()) return;
  const std::string folder = std::filesystem::temp_directory_path().string();
  for (const std::string& command :
       {"inspect --timeline '" + folder + "'", "score " + kTiny + "--input '" + folder + "'",
        "replay " + kTiny + "--trace '" + folder + "'"}) {
    INFO(command);
    const Ran ran = Run(command);
    CHECK(ran.code == 1);
    CHECK(ran.out.empty());
  }
}

TEST_CASE("every command explains itself with an example") {
  if (Missing()) return;
  for (const char* command : {"generate", "replay", "score", "export", "inspect"}) {
    const Ran ran = Run(std::string(command) + " --help");
    CHECK(ran.code == 0);
    CHECK(ran.out.find("eventide " + std::string(command)) != std::string::npos);
    CHECK(ran.out.find("--model") != std::string::npos);
  }
}

TEST_CASE("generate gives the reference's greedy tokens as one JSON object") {
  if (Missing()) return;
  const Ran ran = Run("generate " + kTiny +
                      "--tokens '7 8,9' --dtype float32 --max-tokens 12 --ignore-eos --json");
  REQUIRE(ran.code == 0);
  const Json json = Json::parse(ran.out);
  const auto source = RandomWeights(*PresetConfig("test-llama"), 5);
  auto reference = Reference<double>::Load(*source, DType::kF32);
  REQUIRE(reference.ok());
  std::vector<double> logits;
  for (int token : {7, 8, 9}) logits = reference->Next(token);
  std::vector<int> expected;
  for (int i = 0; i < 12; ++i) {
    expected.push_back(Argmax(logits));
    logits = reference->Next(expected.back());
  }
  CHECK(json["tokens"] == Json(expected));
  CHECK(json["tokens"].size() == 12);
  CHECK(json["finish_reason"] == "length");
  CHECK(json["usage"]["prompt_tokens"] == 3);
  CHECK(json["usage"]["total_tokens"] == 15);
  for (const char* key : {"load_ms", "ttft_ms", "tpot_ms", "total_ms"})
    CHECK(json["timing"][key] > 0);
}

TEST_CASE("stories260K tells llama2.c's story") {
  if (Missing()) return;
  const auto model = TestData("models/stories260K.bin");
  const auto story = TestData("models/stories260K_greedy_256_llama2c.txt");
  if (!model || !story) return Skip("no stories260K in the test data");
  std::ifstream file(*story);
  std::stringstream expected;
  expected << file.rdbuf();
  const Ran ran =
      Run("generate --device cpu --model '" + *model + "' --prompt '' --max-tokens 256");
  REQUIRE(ran.code == 0);
  std::string wanted = expected.str();
  while (!wanted.empty() && wanted.back() == '\n') wanted.pop_back();
  REQUIRE(wanted.size() > 500);
  CHECK(ran.out == wanted + "\n");
}

TEST_CASE("score agrees with float64, keeps order and survives bad lines") {
  if (Missing()) return;
  std::string tokens;
  std::vector<int> ids;
  for (int i = 0; i < 100; ++i) {
    ids.push_back(i * i * 13 % 257);
    tokens += (i > 0 ? "," : "") + std::to_string(ids.back());
  }
  const std::string input = TempFile(
      "in", "{\"id\": \"a\", \"tokens\": [" + tokens +
                "]}\nnot json\n\n{\"id\": 2, \"tokens\": [1, 300]}\n{\"id\": 3, \"text\": \"x\"}\n"
                "{\"id\": 4, \"tokens\": []}\n{\"id\": 5, \"tokens\": [9]}\n");
  const std::string output = TempFile("out", "");
  const Ran ran = Run("score " + kTiny + "--dtype float32 --top 3 --json --input " + input +
                      " --output " + output);
  REQUIRE(ran.code == 0);
  const Json summary = Json::parse(ran.out);
  CHECK(summary["lines"] == 6);
  CHECK(summary["errors"] == 4);
  std::vector<Json> lines;
  std::ifstream file(output);
  for (std::string line; std::getline(file, line);) lines.push_back(Json::parse(line));
  REQUIRE(lines.size() == 6);
  for (int bad : {1, 2, 3, 4}) CHECK(lines[bad].contains("error"));
  CHECK(lines[2]["id"] == 2);
  CHECK(lines[5] == Json::parse(R"({"id": 5, "tokens": [9], "logprobs": [null], "top": [null]})"));

  const Json& first = lines[0];
  CHECK(first["id"] == "a");
  CHECK(first["tokens"] == Json(ids));
  REQUIRE(first["logprobs"].size() == ids.size());
  REQUIRE(first["top"].size() == ids.size());
  CHECK(first["logprobs"][0].is_null());
  const auto source = RandomWeights(*PresetConfig("test-llama"), 5);
  auto reference = Reference<double>::Load(*source, DType::kF32);
  REQUIRE(reference.ok());
  double worst = 0;
  for (size_t i = 0; i + 1 < ids.size(); ++i) {
    const std::vector<double> logits = reference->Next(ids[i]);
    double sum = 0;
    for (double logit : logits) sum += std::exp(logit);
    const double expected = logits[ids[i + 1]] - std::log(sum);
    worst = std::max(worst, std::fabs(first["logprobs"][i + 1].get<double>() - expected));
    const Json& top = first["top"][i + 1];
    REQUIRE(top.size() == 3);
    CHECK(top[0][1].get<double>() >= top[1][1].get<double>());
  }
  // float32 against float64 through four layers.
  CHECK(worst < 1e-5);
  CHECK(worst > 0);
  std::filesystem::remove(input);
  std::filesystem::remove(output);
}

TEST_CASE("replay serves a trace and reports every key of the contract") {
  if (Missing()) return;
  const Ran ran = Run("replay " + kTiny + "--closed-loop 3 --requests 6 --json --trace '" +
                      SourceFile("data/traces/sample_200.csv") + "'");
  REQUIRE(ran.code == 0);
  const Json json = Json::parse(ran.out);
  for (const char* key : {"requests", "completed", "failed", "prompt_tokens", "output_tokens",
                          "seconds", "cancelled", "output_tokens_per_second", "ttft_ms", "tpot_ms",
                          "steps", "distinct_shapes", "compilations", "compilations_after_ready",
                          "max_batch", "preemptions", "prefix_hit_tokens", "step_seconds",
                          "cpu_idle_seconds", "cpu_idle_share"}) {
    INFO(key);
    CHECK(json.contains(key));
  }
  CHECK_FALSE(json.contains("early_exit"));
  CHECK(json["cpu_idle_share"] > 0);
  CHECK(json["cpu_idle_share"] < 1);
  CHECK(json["step_seconds"].get<double>() + json["cpu_idle_seconds"].get<double>() <
        json["seconds"].get<double>() + 0.001);
  CHECK(json["completed"] == 6);
  CHECK(json["compilations_after_ready"] == 0);
  CHECK(json["max_batch"] == 3);
}

TEST_CASE("replay writes one line for each request, with the tokens that greedy decoding gives") {
  if (Missing()) return;
  const std::string output = TempFile("replay.jsonl", "");
  const std::string call = "replay " + kTiny + "--requests 7 --json --trace '" +
                           SourceFile("data/traces/sample_200.csv") + "' --output " + output;
  const auto tokens_by_id = [&](const std::string& flags) {
    const Ran ran = Run(call + flags);
    REQUIRE(ran.code == 0);
    std::map<std::string, Json> tokens;
    uint64_t all = 0;
    std::ifstream file(output);
    for (std::string line; std::getline(file, line);) {
      const Json json = Json::parse(line);
      CHECK(json["finish_reason"] == "length");
      CHECK(json["ttft_ms"].get<double>() > 0);
      CHECK((json["tokens"].size() > 1) == json["tpot_ms"].is_number());
      all += json["tokens"].size();
      CHECK(tokens.emplace(json["id"], json["tokens"]).second);
    }
    CHECK(tokens.size() == 7);
    CHECK(Json::parse(ran.out)["output_tokens"] == all);
    return tokens;
  };
  const auto alone = tokens_by_id(" --closed-loop 1"), together = tokens_by_id(" --time-scale 0");
  CHECK(alone == together);
  std::filesystem::remove(output);
  CHECK(Run(call + "/no/such/folder/x").code == 1);
}

TEST_CASE(
    "replay of a Mooncake trace finds shared prompts, and --no-prefix-cache changes no token") {
  if (Missing()) return;
  std::string lines;
  for (int i = 0; i < 8; ++i) {  // 100 + 512 tokens each: the first 512 tokens alike
    lines += R"({"timestamp": 0, "input_length": 612, "output_length": 5, "hash_ids": [7, )" +
             std::to_string(i) + R"(], "priority": )" + std::to_string(-i) + "}\n";
  }
  const std::string trace = TempFile("mooncake.jsonl", lines), output = TempFile("said.jsonl", "");
  const auto replay = [&](const std::string& flags) {
    const Ran ran =
        Run("replay --model random:test-llama --device cpu --workers 2 --max-num-seqs 4 "
            "--max-model-len 700 --json --time-scale 0 --trace " +
            trace + " --output " + output + flags);
    REQUIRE(ran.code == 0);
    std::map<std::string, std::string> tokens;
    std::ifstream file(output);
    for (std::string line; std::getline(file, line);) {
      const Json json = Json::parse(line);
      tokens[json["id"]] = json["tokens"].dump();
    }
    CHECK(tokens.size() == 8);
    return std::make_pair(tokens, Json::parse(ran.out)["prefix_hit_tokens"].get<int>());
  };
  const auto cached = replay(""), off = replay(" --no-prefix-cache");
  // Whoever joins once the first prompt is done finds 512 tokens; others, what is done by then.
  CHECK(cached.second >= 4 * 512);
  CHECK(cached.second <= 7 * 512);
  CHECK(off.second == 0);
  CHECK(cached.first == off.first);
  CHECK(replay(" --no-enable-prefix-caching --scheduling-policy priority").first == off.first);
  std::filesystem::remove(trace);
  std::filesystem::remove(output);
}

TEST_CASE("a short answer's first token is timed when it comes, not a step later") {
  if (Missing()) return;
  // Simulated, so that a step takes long against all else that happens in between.
  const Ran ran =
      Run("generate --model random:test-llama --device sim --tokens 1 --max-tokens 2 --ignore-eos "
          "--json");
  REQUIRE(ran.code == 0);
  const Json timing = Json::parse(ran.out)["timing"];
  // Both tokens take a step of one token each. Were the first held back until the second is there,
  // nothing but the engine's own microseconds would lie between them.
  CHECK(timing["tpot_ms"].get<double>() > 0.05 * timing["ttft_ms"].get<double>());
}

TEST_CASE("an exported model gives the same tokens as the one it was made from") {
  if (Missing()) return;
  const std::string folder = TempFile("export", "");
  std::filesystem::remove(folder);
  const Ran exported = Run("export --model random:test-llama@5 --json --output " + folder);
  REQUIRE(exported.code == 0);
  CHECK(Json::parse(exported.out)["output"] == folder);
  const std::string rest = " --device cpu --max-model-len 64 --tokens 3,1,4 --max-tokens 9 --json";
  const Ran original = Run("generate --model random:test-llama@5" + rest);
  const Ran loaded = Run("generate --model " + folder + rest);
  REQUIRE(original.code == 0);
  REQUIRE(loaded.code == 0);
  CHECK(Json::parse(original.out)["tokens"] == Json::parse(loaded.out)["tokens"]);
  CHECK(Run("export --model random:test-llama --output " + folder).code == 1);  // never overwrites
  std::filesystem::remove_all(folder);
}

TEST_CASE("SmolLM2 exported answers a question as the file does, its chat template applied") {
  if (Missing()) return;
  const auto model = SmolLm2Path();
  if (!model) return;
  const std::string folder = TempFile("smollm2", "");
  std::filesystem::remove(folder);
  REQUIRE(Run("export --model '" + *model + "' --dtype bfloat16 --output " + folder).code == 0);
  const std::string rest = "' --device cpu --dtype bfloat16 --max-tokens 12 --json --prompt ";
  const std::string question = "'What is the capital of France?'", chat = question + " --chat";
  const Ran from_file = Run("generate --model '" + *model + rest + chat);
  const Ran from_folder = Run("generate --model '" + folder + rest + chat);
  REQUIRE(from_file.code == 0);
  REQUIRE(from_folder.code == 0);
  const Json answer = Json::parse(from_file.out);
  CHECK(answer["text"].get<std::string>().find("Paris") != std::string::npos);
  CHECK(answer["finish_reason"] == "stop");
  CHECK(answer["tokens"] == Json::parse(from_folder.out)["tokens"]);
  const Ran other = Run("generate --model '" + *model + rest + chat + " --system 'Be kind.'");
  REQUIRE(other.code == 0);
  CHECK(Json::parse(other.out)["usage"]["prompt_tokens"] != answer["usage"]["prompt_tokens"]);
  std::filesystem::remove(folder + "/tokenizer_config.json");
  CHECK(Run("generate --model '" + folder + rest + chat).code == 1);  // no template any more
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace eventide
