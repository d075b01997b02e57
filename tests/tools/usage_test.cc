// Every flag of every command against values that it must not take: exit code 2 and nothing on
// stdout, before a model is looked for. The model does not exist, so what is accepted ends with 1.
#include <algorithm>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "tests/support/run_binary.h"
#include "tests/support/test.h"

namespace eventide {
namespace {

using Values = std::vector<std::string>;

struct Flag {
  std::string name;
  Values good, bad;
};

// Whole numbers from `low` to `high`, given as text since high + 1 may not fit a number.
Flag Whole(const std::string& name, const std::string& low, const std::string& high,
           Values beyond) {
  Flag flag{
      name, {low, high}, {"", "-1", "+1", "x", "7x", "1.5", "1e3", "0x10", "010", " 5", "nan"}};
  flag.bad.insert(flag.bad.end(), beyond.begin(), beyond.end());
  return flag;
}

Flag Real(const std::string& name, Values good, Values beyond) {
  Flag flag{
      name, std::move(good), {"", "-1", "x", "0.5x", "nan", "inf", "-inf", "1e999", " 1", "0x1p3"}};
  flag.bad.insert(flag.bad.end(), beyond.begin(), beyond.end());
  return flag;
}

const std::string kBeyond64 = "18446744073709551616";

const std::vector<Flag> kModelFlags = {
    {"--model", {}, {""}},
    {"--dtype", {"auto", "bfloat16", "float16", "float32"}, {"", "int8", "BFLOAT16"}}};

const std::vector<Flag> kDeviceFlags = {
    {"--device", {"cpu"}, {"", "gpu"}},
    Whole("--workers", "0", "1024", {"1025", "2147483648", kBeyond64}),
    {"--policy", {"auto", "static", "ticket"}, {"", "clc"}},
    {"--block-size",
     {"1", "8", "1024"},
     {"", "0", "7", "24", "-8", "2048", "08", "16x", kBeyond64}}};

const std::vector<Flag> kSeed = {Whole("--seed", "0", "18446744073709551615", {kBeyond64})};

const Flag kSpeculate = {"--speculate",
                         {"ngram:1", "ngram:16"},
                         {"", "ngram", "ngram:", "ngram:0", "ngram:01", "ngram:17", "ngram:-1",
                          "ngram:2x", "model:2"}};

// --draft-tokens is of --speculate-model, so that no value of it is good alone.
std::vector<Flag> DraftModelFlags() {
  Flag tokens = Whole("--draft-tokens", "1", "16", {"0", "17", kBeyond64});
  tokens.good.clear();
  return {{"--speculate-model", {"/no/such/draft"}, {""}}, tokens};
}

const std::vector<Flag> kExits = {
    Real("--exit-threshold", {"0", "0.9", "1"}, {"1.1", "-0.5"}),
    {"--exit-after", {"1", "2:3", "16:1"}, {"", "0", "x", "1:", ":1", "1:0", "1:2:3", "-1", "1025", "01"}}};

std::vector<Flag> EngineFlagRows() {
  std::vector<Flag> flags = kModelFlags;
  flags.insert(flags.end(), kDeviceFlags.begin(), kDeviceFlags.end());
  flags.insert(flags.end(), kSeed.begin(), kSeed.end());
  flags.push_back(kSpeculate);
  flags.push_back({"--draft-tokens-schedule", {}, {"", "fixed"}});  // of --speculate: no value is good alone
  flags.insert(flags.end(), kExits.begin(), kExits.end());
  flags.push_back(Whole("--max-num-seqs", "0", "1024", {"1025", kBeyond64}));
  flags.push_back(Whole("--max-num-batched-tokens", "0", "1048576", {"1048577", kBeyond64}));
  flags.push_back(Whole("--max-model-len", "0", "16777216", {"16777217", kBeyond64}));
  flags.push_back(Whole("--num-blocks", "0", "2147483647", {"2147483648", kBeyond64}));
  flags.push_back({"--scheduling-policy", {"fcfs", "priority"}, {"", "sjf"}});
  flags.push_back(Whole("--long-prefill-token-threshold", "0", "1048576", {"1048577"}));
  flags.push_back({"--tokenizer", {"/no/such/file"}, {""}});
  return flags;
}

std::vector<Flag> With(std::vector<Flag> flags, const std::vector<Flag>& more) {
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

struct Command {
  std::string name, rest;  // `rest` makes it complete
  std::vector<Flag> flags;
  std::string model = "--model /no/such/model ";  // what makes a good call fail; "": `rest` does
};

const std::vector<Command>& Commands() {
  static const std::string trace = "'" + SourceFile("data/traces/sample_200.csv") + "'";
  static const std::vector<Command> commands = {
      {"generate", "--tokens 1",
       With(With(EngineFlagRows(), DraftModelFlags()),
            {{"--prompt", {}, {}},
             {"--system", {}, {}},
             {"--tokens", {}, {"", "x", "1,-2", "1;2", "99999999999", "1.5"}},
             Whole("--max-tokens", "1", "4294967295", {"0", "4294967296", kBeyond64}),
             Real("--temperature", {"0", "0.7", "1e-3"}, {"-0.1", "1e39"}),
             Whole("--top-k", "0", "0", {"4294967296", kBeyond64}),
             Real("--top-p", {"1", "1.0"}, {"0", "1.5", "-0.5"}),
             {"--stop", {"x"}, {""}}})},
      {"replay", "--trace " + trace,
       With(With(EngineFlagRows(), DraftModelFlags()),
                              {{"--trace", {}, {""}},
                               {"--output", {"/no/such/folder/x"}, {""}},
                               Whole("--requests", "0", "18446744073709551615", {kBeyond64}),
                               Whole("--closed-loop", "0", "18446744073709551615", {kBeyond64}),
                               Whole("--verify", "0", "18446744073709551615", {kBeyond64}),
                               Real("--time-scale", {"0", "0.5", "1000000"}, {"1000001", "1e8"})})},
      {"score", "--input /dev/null",
       With(EngineFlagRows(), {{"--input", {}, {""}},
                               {"--output", {"/no/such/folder/x"}, {""}},
                               Whole("--top", "0", "1000", {"1001", kBeyond64})})},
      {"export", "--output /no/such/folder/x", With(kModelFlags, {{"--output", {}, {""}}})},
      {"inspect", "--events",
       With(EngineFlagRows(), {{"--arch", {}, {"", "sm_91", "hopper"}}, {"--timeline", {}, {""}}})},
      {"bench decode", "",
       With(With(With(With(With(kModelFlags, kDeviceFlags), kSeed), DraftModelFlags()), kExits),
            {Whole("--batch", "1", "1024", {"0", "1025", "1,x", "1,1025", kBeyond64}),
             Whole("--context", "1", "16777216", {"0", "16777217", "512,-1", kBeyond64}),
             Whole("--tokens-per-row", "1", "16", {"0", "17"}),
             kSpeculate,
             Whole("--steps", "1", "1000000", {"0", "1000001"}),
             Whole("--warmup", "0", "1000000", {"1000001"}),
             Real("--kv-gib", {"0", "1.5"}, {"1e7"}),
             {"--timeline", {"/no/such/folder/x"}, {""}}})},
      {"bench prefill", "",
       With(With(With(kModelFlags, kDeviceFlags), kSeed),
            {Whole("--chunk", "1", "1048576", {"0", "1048577", "1,x", kBeyond64}),
             Whole("--context", "0", "16777216", {"16777217", kBeyond64}),
             Whole("--steps", "1", "1000000", {"0", "1000001"}),
             Whole("--warmup", "0", "1000000", {"1000001"}),
             Real("--kv-gib", {"0", "1.5"}, {"1e7"}),
             Real("--peak-tflops", {"0", "989.4"}, {"1e7"})})},
      {"bench shapes", "",
       With(With(With(kModelFlags, kDeviceFlags), kSeed),
            {Whole("--batch", "1", "1024", {"0", "1025", "1..", "..1", "2..1", "1...2", "0..3", "1..1025", "1..x"}),
             Whole("--chunk", "1..600", "65536", {"0", "65537", "1,x", kBeyond64}),
             Whole("--mixed", "1", "1023", {"0", "1024"}),
             Whole("--mixed-chunk", "1", "1048576", {"0", "1048577"}),
             Whole("--context", "1", "16777216", {"0", "16777217", kBeyond64}),
             Whole("--chunk-context", "0", "16777216", {"16777217", kBeyond64}),
             Whole("--steps", "1", "1000000", {"0", "1000001"}),
             Whole("--warmup", "0", "1000000", {"1000001"}),
             Real("--limit", {"0", "2.5"}, {"1001"}),
             Real("--seconds", {"0", "0.5"}, {"1e10"}),
             Real("--kv-gib", {"0", "1.5"}, {"1e7"})})},
      {"bench moe", "",
       With(With(With(kModelFlags, kDeviceFlags), kSeed),
            {Whole("--batch", "1", "1024", {"0", "1025", "1,x", kBeyond64}),
             Whole("--context", "1", "16777216", {"0", "16777217", kBeyond64}),
             Whole("--steps", "1", "1000000", {"0", "1000001"}),
             Whole("--warmup", "0", "1000000", {"1000001"}),
             {"--policies", {"auto", "static,ticket"}, {"", "clc", "static,clc"}},
             {"--routing", {"uniform", "zipf:1,router"}, {""}},
             {"--record", {}, {"", "/no/such/folder/x"}}})},
      {"bench sync", "", {}},
      {"cache list", "", {}},
      {"cache clear", "", {}},
      {"cache add", "--arch sm_90a",
       With(With(EngineFlagRows(), DraftModelFlags()), {{"--arch", {}, {"", "sm_91", "hopper"}}})},
      {"stress",
       "--replay 'graph pages=1' --device sim",
       {{"--device", {}, {"", "gpu"}},
        Real("--seconds", {"0", "0.5"}, {"1e10"}),
        Whole("--cases", "0", "1000000000", {"1000000001", kBeyond64}),
        Whole("--seed", "0", "18446744073709551615", {kBeyond64}),
        {"--kinds", {"graph", "graph,serve"}, {"", "dance", "graph,dance"}},
        {"--replay", {}, {"", "graph a", "graph a=1 a=1"}}},
       ""},
      {"warmup", "",
       With(With(EngineFlagRows(), DraftModelFlags()),
                              {Whole("--num-iters-cold", "1", "1000", {"0", "1001"}),
                               Whole("--num-iters-warm", "1", "1000", {"0", "1001"}),
                               Whole("--prompt-tokens", "1", "1048576", {"0", "1048577"}),
                               Whole("--shapes", "0", "1024", {"1025", kBeyond64})})}};
  return commands;
}

// The long names of flags that take a value, as --help lists them.
std::set<std::string> ListedFlags(const std::string& command) {
  const Ran help = Run(command + " --help");
  REQUIRE(help.code == 0);
  const std::regex line("^  (\\S+) (TEXT|INT|UINT|FLOAT)"), name("--[a-z-]+");
  std::set<std::string> flags;
  std::istringstream lines(help.out);
  for (std::string text; std::getline(lines, text);) {
    std::smatch match, flag;
    if (!std::regex_search(text, match, line)) continue;
    const std::string names = match[1].str();
    REQUIRE(std::regex_search(names, flag, name));
    flags.insert(flag[0].str());
  }
  return flags;
}

// Empty: the command has none.
std::set<std::string> Subcommands(const std::string& command) {
  const std::string help = Run(command + " --help").out;
  std::set<std::string> names;
  const size_t list = help.find("Subcommands:");
  if (list == std::string::npos) return names;
  std::istringstream lines(help.substr(list));
  for (std::string text; std::getline(lines, text);) {
    std::smatch match;
    if (std::regex_search(text, match, std::regex("^  ([a-z]+) "))) names.insert(match[1].str());
  }
  names.erase("eventide");  // the examples below the list
  return names;
}

TEST_CASE("--help says the default of every flag that takes a number or a name of a list") {
  if (Missing()) return;
  int told = 0;
  for (const Command& command : Commands()) {
    const std::string help = Run(command.name + " --help").out;
    const std::regex flag("^  (-\\S+) ((?:INT|UINT|FLOAT)\\S*|TEXT:\\{\\S+)(.*)");
    std::istringstream lines(help);
    for (std::string text, next; std::getline(lines, text);) {
      std::smatch match;
      if (!std::regex_search(text, match, flag)) continue;
      const bool list = text.find(" ...") != std::string::npos && match[2].str().starts_with("TEXT");
      std::string texts = text;
      if (text.find("  ", text.find(match[2].str())) == std::string::npos && std::getline(lines, next)) texts += next;
      INFO(command.name << ": " << texts);
      CHECK((list || texts.find("(default ") != std::string::npos));
      CHECK(texts.find("=") == std::string::npos);
      ++told;
    }
  }
  CHECK(told > 100);
  CHECK(Run("generate --help").out.find("Tokens of a KV block (default 16)") != std::string::npos);
  CHECK(Run("bench decode --help").out.find("such as 1,8,16 (default 1)") != std::string::npos);
}

TEST_CASE("the table of flags names every command, and every flag that takes a value") {
  if (Missing()) return;
  std::set<std::string> known, listed;
  for (const Command& command : Commands()) known.insert(command.name);
  for (const std::string& name : Subcommands("")) {
    const std::set<std::string> parts = Subcommands(name);
    for (const std::string& part : parts) listed.insert(name + " " + part);
    if (parts.empty()) listed.insert(name);
  }
  CHECK(known == listed);
  for (const Command& command : Commands()) {
    INFO(command.name);
    std::set<std::string> named;
    for (const Flag& flag : command.flags) named.insert(flag.name);
    CHECK(named == ListedFlags(command.name));
  }
}

TEST_CASE("no flag takes a value out of its range, or text for a number") {
  if (Missing()) return;
  for (const Command& command : Commands()) {
    if (command.flags.empty()) continue;
    const std::string base = command.name + " " + command.model + command.rest + " ";
    for (const Flag& flag : command.flags) {
      const bool in_rest = command.rest.find(flag.name + " ") != std::string::npos;
      for (const std::string& value : flag.bad) {
        // A flag given twice would be refused whatever its value.
        std::string call = in_rest ? command.name + " " + command.model : base;
        if (flag.name == "--model") call = command.name + " " + command.rest + " ";
        if (flag.name == "--arch") call = command.name + " --model /no/such/model --kernels ";
        if (flag.name == "--timeline" && command.name == "inspect") call = "inspect ";
        call += flag.name + "='" + value + "'";
        INFO(call);
        const Ran ran = Run(call);
        CHECK(ran.code == 2);
        CHECK(ran.out.empty());
      }
      for (const std::string& value : flag.good) {
        const std::string call = base + flag.name + " '" + value + "'";
        INFO(call);
        CHECK(Run(call).code == 1);  // for want of the model
      }
    }
  }
}

TEST_CASE("flags that contradict each other, or say nothing together, are bad usage") {
  if (Missing()) return;
  const std::string trace = "'" + SourceFile("data/traces/sample_200.csv") + "'";
  const std::string model = " --model /no/such/model ";
  for (const std::string& call :
       Values{"",
              "nonsense",
              "--nonsense",
              "generate extra" + model + "--tokens 1",
              "generate",
              "bench",
              "bench nonsense",
              "generate" + model,
              "generate" + model + "--tokens 1 --prompt x",
              "generate" + model + "--tokens 1 --top-k 5",
              "generate" + model + "--tokens 1 --chat",
              "generate" + model + "--prompt x --system y",
              "generate" + model + "--tokens 1 --temperature 0 --top-p 0.5",
              "generate" + model + "--tokens 1 --workers 1 --workers 2",
              "generate" + model + "--tokens 1 --json=maybe",
              "generate" + model + "--tokens 1 --draft-tokens 4",
              "generate" + model + "--tokens 1 --draft-tokens-schedule heuristic",
              "generate" + model + "--tokens 1 --speculate ngram:2 --speculate-model /no/such/draft",
              "bench decode" + model + "--speculate-model /no/such/draft --tokens-per-row 2",
              "generate --tokens 1",
              "replay" + model,
              "replay" + model + "--closed-loop 2 --time-scale 1 --trace " + trace,
              "replay" + model + "--trace " + trace + " --output " + trace,
              "score" + model + "--json",
              "score" + model + "--input " + trace + " --output " + trace,
              "export" + model,
              "inspect" + model,
              "inspect --events",
              "inspect" + model + "--events --graph",
              "inspect" + model + "--events --arch sm_90a",
              "inspect" + model + "--source --arch sm_90a --arch sm_80",
              "inspect --timeline x --events",
              "bench decode" + model + "--batch 1,2 --timeline x",
              "bench decode" + model + "--device sim",
              "bench prefill" + model + "--device sim",
              "bench shapes" + model + "--device sim",
              "bench sync extra",
              "cache",
              "cache nonsense",
              "cache list clear extra",
              "cache add --model random:test-llama",
              "cache add --arch sm_90a",
              "generate --model random:test-llama --tokens 1 --exit-after 2",
              "generate --model random:test-early-exit --tokens 1 --exit-threshold 0.5 --exit-after 99",
              "generate --model random:test-llama --device cpu --tokens 1 --max-num-batched-tokens 1048576 "
              "--speculate-model random:test-llama@1",
              "cache add --model random:test-llama --arch sm_90a --dtype float32",
              "generate --model random:nosuch --tokens 1",
              "generate --model random:test-llama --device cpu --tokens 1 --speculate-model random:nosuch",
              "bench moe --model random:test-moe --device cpu --routing zipf",
              "bench moe --model random:test-moe --device cpu --routing zipf:11",
              "warmup" + model + "--cold --compare"}) {
    INFO(call);
    const Ran ran = Run(call);
    CHECK(ran.code == 2);
    CHECK(ran.out.empty());
    const std::string errors = RunForErrors(call).out;
    INFO(errors);
    CHECK(errors.starts_with("eventide: "));
    CHECK(std::count(errors.begin(), errors.end(), '\n') == 1);
  }
  CHECK(RunForErrors("bench decode --model x --batch 0").out ==
        "eventide: --batch: '0' is not a whole number from 1 to 1024; eventide bench decode --help says more\n");
}

TEST_CASE("what the model or the device cannot take is bad usage too") {
  if (Missing()) return;
  for (const std::string& flags :
       Values{"--max-model-len 1", "--max-model-len 2049", "--device sim --workers 65",
              "--tokens 257", "--stop x", "--prompt x", "--num-blocks 1 --max-tokens 100",
              "--max-num-seqs 2 --max-model-len 4 --tokens 1,2,3,4"}) {
    const bool prompt = flags.find("--tokens") == 0 || flags.find("--prompt") == 0 ||
                        flags.find(" --tokens") != std::string::npos;
    const std::string call =
        "generate --model random:test-llama --device cpu " + flags + (prompt ? "" : " --tokens 1");
    const bool twice = flags.find("--device") == 0;
    const std::string once =
        twice ? "generate --model random:test-llama --tokens 1 " + flags : call;
    INFO(once);
    const Ran ran = Run(once);
    CHECK(ran.code == 2);
    CHECK(ran.out.empty());
  }
  CHECK(Run("inspect --model random:test-llama --events --max-model-len 4096").code == 2);
  CHECK(Run("inspect --model random:test-llama --kernels --dtype float32").code == 2);
}

}  // namespace
}  // namespace eventide
