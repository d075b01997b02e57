// --speculate-model as a user gives it: what the commands report, and which draft models are refused.
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/run_binary.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test.h"

namespace eventide {
namespace {

using Json = nlohmann::json;

const std::string kTiny = "--model random:test-llama@5 --device cpu --workers 2 ";

Json Object(const std::string& call) {
  INFO(call);
  const Ran ran = Run(call);
  REQUIRE(ran.code == 0);
  return Json::parse(ran.out);
}

TEST_CASE("generate with a draft model gives the plain answer and says what became of the drafts") {
  if (Missing()) return;
  const std::string call = "generate " + kTiny + "--max-model-len 128 --max-tokens 41 --ignore-eos --json ";
  for (const std::string sampling : {"--tokens 3,1,4 ", "--tokens 3,1,4 --temperature 0.5 --seed 2 "}) {
    const Json plain = Object(call + sampling);
    CHECK_FALSE(plain.contains("speculation"));
    for (const std::string draft : {"random:test-llama@5", "random:test-llama@6"}) {
      const Json json = Object(call + sampling + "--draft-tokens 3 --speculate-model " + draft);
      CHECK(json["tokens"] == plain["tokens"]);
      const Json& drafts = json["speculation"];
      CHECK(drafts["drafted"] > 0);
      CHECK(drafts["acceptance_by_position"].size() == 3);
      if (draft != "random:test-llama@5" || sampling != "--tokens 3,1,4 ") continue;
      CHECK(drafts["accepted"] == drafts["drafted"]);
      CHECK(drafts["tokens_per_step"] == 4.0);  // 40 tokens behind the prompt's own
    }
  }
}

TEST_CASE("a schedule of looked-up drafts changes how many there are, and no token") {
  if (Missing()) return;
  const std::string call = "generate " + kTiny + "--max-model-len 256 --max-tokens 200 --ignore-eos --json --tokens " +
                           "3,1,4,3,1,4,3,1,4,3,1,4 --temperature 0.4 ";
  const Json plain = Object(call), constant = Object(call + "--speculate ngram:16"),
             heuristic = Object(call + "--speculate ngram:16 --draft-tokens-schedule heuristic");
  CHECK(constant["tokens"] == plain["tokens"]);
  CHECK(heuristic["tokens"] == plain["tokens"]);
  CHECK(Object(call + "--speculate ngram:16 --draft-tokens-schedule constant")["speculation"] == constant["speculation"]);
  CHECK(heuristic["speculation"]["drafted"] > 0);
  CHECK(heuristic["speculation"]["drafted"] < constant["speculation"]["drafted"]);
}

TEST_CASE("replay with a draft model gives the plain tokens of every request") {
  if (Missing()) return;
  const TempFolder folder;
  const std::string call = "replay " + kTiny + "--max-model-len 128 --max-num-seqs 4 --requests 6 --json " +
                           "--closed-loop 3 --trace '" + SourceFile("data/traces/sample_200.csv") +
                           "' --output " + folder / "out";
  const auto tokens = [&](const std::string& flags) {
    Object(call + flags);
    std::map<std::string, Json> tokens;
    std::ifstream file(folder / "out");
    for (std::string line; std::getline(file, line);) {
      const Json json = Json::parse(line);
      tokens[json["id"]] = json["tokens"];
    }
    CHECK(tokens.size() == 6);
    return tokens;
  };
  CHECK(tokens("") == tokens(" --speculate-model random:test-llama@5"));
  CHECK(Object(call + " --speculate-model random:test-llama@5")["speculation"]["accepted"] > 0);
}

TEST_CASE("bench decode times the draft model's steps with the target's") {
  if (Missing()) return;
  const std::string call = "bench decode " + kTiny + "--context 40 --batch 1,3 --steps 3 --warmup 1 --json";
  const Json plain = Object(call), drafting = Object(call + " --speculate-model random:test-llama@6");
  for (size_t i = 0; i < 2; ++i) {
    const Json& row = drafting["rows"][i];
    CHECK(row["speculation"]["drafted"] == 3 * 4 * row["batch"].get<int>());
    CHECK(row["bytes"] > 4 * plain["rows"][i]["bytes"].get<int64_t>());
  }
  const std::string text = "bench decode " + kTiny + "--context 40 --steps 1 --warmup 0 ";
  CHECK(Run(text).out.find(", 1 token a row\n") != std::string::npos);
  CHECK(Run(text + "--tokens-per-row 3").out.find(", 3 tokens a row\n") != std::string::npos);
  CHECK(Run(text + "--speculate ngram:5").out.find(", 1 token and 5 drafts a row\n") != std::string::npos);
  // The draft model's positions must hold the context.
  CHECK(Run("bench decode --model random:qwen3-0.6b --speculate-model random:test-llama").code == 2);
}

TEST_CASE("draft models of another vocabulary are bad usage, by its size or by what its ids mean") {
  if (Missing()) return;
  CHECK(Run("generate " + kTiny + "--tokens 1 --speculate-model random:qwen3-0.6b").code == 2);
  const TempFolder folder;
  const auto export_with = [&](const std::string& name, int first) {
    REQUIRE(Run("export --model random:test-llama --output " + folder / name).code == 0);
    Json vocab;
    for (int id = 0; id < 257; ++id) vocab["t" + std::to_string((id + first) % 257)] = id;
    const Json model = {{"type", "BPE"}, {"vocab", vocab}, {"merges", Json::array()}};
    const Json file = {{"added_tokens", Json::array()},
                       {"normalizer", nullptr},
                       {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
                       {"post_processor", nullptr},
                       {"decoder", {{"type", "ByteLevel"}}},
                       {"model", model}};
    std::ofstream((folder / name) + "/tokenizer.json") << file.dump();
    return folder / name;
  };
  const std::string model = export_with("model", 0);
  const std::string call =
      "generate --device cpu --max-model-len 64 --tokens 1 --max-tokens 3 --model " + model;
  CHECK(Run(call + " --speculate-model " + export_with("same", 0)).code == 0);
  CHECK(Run(call + " --speculate-model " + export_with("other", 1)).code == 2);
  CHECK(Run(call + " --speculate-model random:test-llama@7").code == 0);  // has no tokenizer
}

}  // namespace
}  // namespace eventide
