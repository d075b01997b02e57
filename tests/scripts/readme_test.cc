// The graph of README.md, compiled with the command beside it.
#include <cstdlib>
#include <filesystem>

#include "tests/support/temp_folder.h"
#include "tests/support/test.h"

namespace eventide {
namespace {

// What stands between two marks behind `from`.
std::string Between(const std::string& text, const std::string& begin, const std::string& end, size_t from = 0) {
  const size_t first = text.find(begin, from);
  REQUIRE(first != std::string::npos);
  const size_t last = text.find(end, first + begin.size());
  REQUIRE(last != std::string::npos);
  return text.substr(first + begin.size(), last - first - begin.size());
}

void Replace(std::string* text, const std::string& what, const std::string& by) {
  const size_t at = text->find(what);
  REQUIRE(at != std::string::npos);
  text->replace(at, what.size(), by);
}

TEST_CASE("the README's graph compiles with its command, and is refused without its wait") {
  const std::string library = std::string(EVENTIDE_BINARY_ROOT) + "/libeventide_core.a";
  if (!std::filesystem::exists(library) || std::system("g++ --version > /dev/null 2>&1") != 0) {
    return Skip("no g++, or no libeventide_core.a");
  }
  const std::string readme = ReadFile(SourceFile("README.md"));
  const TempFolder folder;
  const auto prints = [&](const std::string& program) {
    WriteFile(folder / "pair.cc", program);
    std::string command = Between(readme, "compiles with `g++ ", "`");
    while (command.find('\n') != std::string::npos) Replace(&command, "\n", " ");
    Replace(&command, "pair.cc", folder / "pair.cc");
    Replace(&command, "build/libeventide_core.a", library);
    Replace(&command, "-o pair", "-o " + (folder / "pair"));
    CAPTURE(command);
    REQUIRE(std::system(("cd '" + SourceFile(".") + "' && g++ " + command).c_str()) == 0);
    REQUIRE(std::system(("'" + (folder / "pair") + "' > '" + (folder / "out") + "'").c_str()) == 0);
    return ReadFile(folder / "out");
  };
  std::string program = Between(readme, "```cpp\n", "```");
  CHECK(prints(program).find("target min(e0 * 4 + 4, rows) - e0 * 4") != std::string::npos);
  Replace(&program, "      .Wait(done, {At(0)});", "      ;");
  CHECK(prints(program).find("grid sum reads tensor y with no event path") != std::string::npos);
}

}  // namespace
}  // namespace eventide
