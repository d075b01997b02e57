// SIGINT and SIGTERM while a command runs: the first ends it with what it has, the second at once.
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/child.h"
#include "tests/support/temp_folder.h"

namespace eventide {
namespace {

using Json = nlohmann::json;
using std::chrono::milliseconds;

const std::vector<std::string> kModel = {"--model", "random:test-llama@5", "--workers", "2"};

std::vector<std::string> Command(const std::string& name, std::vector<std::string> more) {
  std::vector<std::string> all = {name};
  all.insert(all.end(), kModel.begin(), kModel.end());
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

std::string Line(int id, int tokens) {
  Json line = {{"id", id}, {"tokens", Json::array()}};
  for (int i = 0; i < tokens; ++i) line["tokens"].push_back(i % 250);
  return line.dump() + "\n";
}

TEST_CASE("a signal ends generate with the tokens that it has") {
  if (Missing()) return;
  Child child(Command("generate", {"--device", "cpu", "--tokens", "1,2,3", "--max-tokens", "2000",
                                   "--ignore-eos"}));
  REQUIRE(child.ReadUntil(" "));
  child.Signal(SIGINT);
  CHECK(child.Wait() == 130);
  CHECK(child.output().back() == '\n');
  CHECK(std::count(child.output().begin(), child.output().end(), ' ') < 2000);
}

TEST_CASE("generate --json gives a whole object when it is cut short") {
  if (Missing()) return;
  // The simulator takes long for its tokens. A signal that comes before the first of them, while
  // the model is loaded, ends the process at once: then a later one is tried.
  Json json;
  for (int ms = 500; ms < 100000 && json.is_null(); ms *= 2) {
    Child child(Command("generate", {"--device", "sim", "--tokens", "1,2,3", "--max-tokens", "2000",
                                     "--ignore-eos", "--json"}));
    std::this_thread::sleep_for(milliseconds(ms));
    child.Signal(SIGTERM);
    REQUIRE(child.Wait() == 143);
    if (!child.output().empty()) json = Json::parse(child.output());
  }
  CHECK(json["finish_reason"] == "abort");
  CHECK(json["tokens"].size() < 2000);
  CHECK(json["usage"]["completion_tokens"] == json["tokens"].size());
  CHECK(json["timing"]["ttft_ms"].is_null() == json["tokens"].empty());
}

TEST_CASE("score stops waiting for input, behind whole lines") {
  if (Missing()) return;
  Child child(Command("score", {"--device", "cpu"}));
  child.Write(Line(1, 5) + Line(2, 6));
  REQUIRE(child.ReadUntil("\"id\":2"));
  child.Signal(SIGTERM);
  CHECK(child.Wait() == 143);
  CHECK(std::count(child.output().begin(), child.output().end(), '\n') == 2);
}

TEST_CASE("a second signal ends a command at once, in the middle of its work") {
  if (Missing()) return;
  Child child(Command("score", {"--device", "sim"}));
  child.Write(Line(1, 2));
  REQUIRE(child.ReadUntil("\n"));
  // Simulated, this takes many seconds; the first signal lets it finish.
  child.Write(Line(2, 1500));
  std::this_thread::sleep_for(milliseconds(200));
  child.Signal(SIGINT);
  std::this_thread::sleep_for(milliseconds(200));
  child.Signal(SIGTERM);
  CHECK(child.Wait() == 143);
  CHECK(std::count(child.output().begin(), child.output().end(), '\n') == 1);
}

TEST_CASE("replay stops waiting for arrivals and reports what was served") {
  if (Missing()) return;
  const TempFolder folder;
  const std::string trace = folder.path() + "/trace.csv", lines = folder.path() + "/out.jsonl";
  std::ofstream(trace) << "TIMESTAMP,ContextTokens,GeneratedTokens\n0,5,3\n7200,5,3\n7201,5,3\n";
  Child child(
      Command("replay", {"--device", "cpu", "--trace", trace, "--output", lines, "--json"}));
  std::string first;
  for (int tries = 0; tries < 3000 && first.empty(); ++tries) {
    std::this_thread::sleep_for(milliseconds(20));
    std::ifstream file(lines);
    std::getline(file, first);
  }
  REQUIRE_FALSE(first.empty());
  child.Signal(SIGINT);
  CHECK(child.Wait() == 130);
  const Json json = Json::parse(child.output());
  CHECK(json["requests"] == 3);
  CHECK(json["completed"] == 1);
  CHECK(json["cancelled"] == 2);
  CHECK(json["failed"] == 0);
  CHECK(Json::parse(first)["tokens"].size() == 3);
}

TEST_CASE("a signal ends export and leaves nothing of what it wrote") {
  if (Missing()) return;
  for (const int number : {SIGINT, SIGTERM}) {
    const TempFolder folder;
    const std::string output = folder / "new/newer/out";
    // Two gigabytes, of which few are written.
    Child child({"export", "--model", "random:llama-3.2-1b", "--output", output});
    for (int tries = 0; tries < 3000; ++tries) {
      if (std::filesystem::exists(output + "/model.safetensors.partial")) break;
      std::this_thread::sleep_for(milliseconds(10));
    }
    REQUIRE(std::filesystem::exists(output + "/model.safetensors.partial"));
    child.Signal(number);
    CHECK(child.Wait() == 128 + number);
    CHECK(child.output().empty());
    CHECK_FALSE(std::filesystem::exists(folder / "new"));
    CHECK(std::filesystem::exists(folder.path()));
  }
}

}  // namespace
}  // namespace eventide
