// Chat templates against what Jinja makes of them (scripts/goldens/chat_goldens.py).
#include "text/chat_template.h"

#include <fstream>

#include "formats/gguf.h"
#include "tests/support/models.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tokenizer_corpus.h"

namespace eventide {
namespace {

using Json = nlohmann::json;

const Json& Golden() {
  static const Json golden =
      Json::parse(ReadWholeFile(SourceFile("tests/golden/chat_templates.json")));
  return golden;
}

void CheckTemplate(const std::string& jinja, const Json& expected) {
  const auto chat = ChatTemplate::Parse(jinja);
  INFO(chat.status().ToString());
  REQUIRE(chat.ok());
  const std::string question = Golden()["question"], system = Golden()["system"];
  CHECK(chat->Ask(question, std::nullopt) == expected["asked"]);
  CHECK(chat->Ask(question, system) == expected["with_system"]);
}

TEST_CASE("templates of the ChatML kind give what Jinja gives") {
  CHECK(Golden()["own"].size() == 3);
  for (const auto& [name, golden] : Golden()["own"].items()) {
    INFO(name);
    CheckTemplate(golden["template"], golden);
  }
}

TEST_CASE("Qwen's templates, with tools and thinking aside, give what Jinja gives") {
  for (const auto& [name, golden] : Golden()["data"].items()) {
    const auto path = TestData("tokenizers/" + name);
    if (!path) return Skip("no tokenizers/" + name + "; configure with -DEVENTIDE_TEST_DATA");
    INFO(name);
    const TempFolder folder;
    std::filesystem::copy_file(*path, folder.path() + "/tokenizer_config.json");
    const auto jinja = ReadChatTemplate(folder.path());
    REQUIRE(jinja.ok());
    CheckTemplate(*jinja, golden);
  }
}

TEST_CASE("SmolLM2's template from GGUF metadata gives what Jinja gives") {
  const auto path = SmolLm2Path();
  if (!path) return;
  const auto jinja = ReadChatTemplate(*path);
  REQUIRE(jinja.ok());
  CheckTemplate(*jinja, Golden()["smollm2"]);
}

TEST_CASE("a template that would print anything else is refused, not guessed at") {
  CHECK(Golden()["refused"].size() >= 10);
  for (const auto& [name, jinja] : Golden()["refused"].items()) {
    INFO(name);
    const auto chat = ChatTemplate::Parse(jinja.get<std::string>());
    REQUIRE_FALSE(chat.ok());
    CHECK(absl::IsUnimplemented(chat.status()));
    CHECK(chat.status().message().find("without --chat") != absl::string_view::npos);
  }
  for (const char* jinja : {"", "{", "{{", "{{ 'x", "{% if %}", "{% endif %}", "{# x", "{{ }}"}) {
    INFO(jinja);
    CHECK_FALSE(ChatTemplate::Parse(jinja).ok());
  }
  const auto smollm3 = TestData("tokenizers/smollm3_chat_template.jinja");
  if (smollm3) CHECK_FALSE(ChatTemplate::Parse(ReadWholeFile(*smollm3)).ok());
}

TEST_CASE("a template is found beside the tokenizer, by its own file first") {
  const TempFolder folder;
  const auto write = [&](const std::string& name, const std::string& text) {
    std::ofstream(folder.path() + "/" + name) << text;
  };
  CHECK(absl::IsNotFound(ReadChatTemplate(folder.path()).status()));
  write("tokenizer_config.json", "{}");
  CHECK(absl::IsNotFound(ReadChatTemplate(folder.path()).status()));
  write(
      "tokenizer_config.json",
      R"({"chat_template": [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]})");
  CHECK(ReadChatTemplate(folder.path()).value() == "d");
  CHECK(ReadChatTemplate(folder.path() + "/tokenizer.json").value() == "d");
  write("tokenizer_config.json", R"({"chat_template": "c"})");
  CHECK(ReadChatTemplate(folder.path()).value() == "c");
  write("chat_template.jinja", "own");
  CHECK(ReadChatTemplate(folder.path()).value() == "own");
}

}  // namespace
}  // namespace eventide
