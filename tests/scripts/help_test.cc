// --help of every script prints what stands at its top and does nothing.
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>

#include "tests/support/temp_folder.h"
#include "tests/support/test.h"

namespace eventide {
namespace {

namespace fs = std::filesystem;

// The scripts in a folder of their own, so that one that does more than it should finds nothing to build.
int Script(const TempFolder& tree, const std::string& call) {
  const int status = std::system(("'" + (tree / "scripts/") + call + " >'" + (tree / "out") + "' 2>'" +
                                  (tree / "errors") + "' </dev/null").c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_CASE("every script tells its usage when it is asked for it, and does nothing else") {
  const TempFolder tree;
  fs::create_directories(tree / "scripts");
  for (const auto& entry : fs::directory_iterator(SourceFile("scripts"))) {
    if (entry.is_regular_file()) fs::copy(entry.path(), tree / "scripts");
  }
  for (const std::string script : {"build", "test", "quickstart", "ptx-machine", "gpu-test", "gpu-shapes"}) {
    for (const std::string flag : {"--help", "-h"}) {
      CAPTURE(script, flag);
      CHECK(Script(tree, script + "' " + flag) == 0);
      CHECK(ReadFile(tree / "errors").empty());
      const std::string said = ReadFile(tree / "out");
      CHECK(said.find("\n  scripts/" + script) != std::string::npos);
      CHECK(said.find('#') == std::string::npos);
      CHECK(said.find("source") == std::string::npos);
      CHECK_FALSE(fs::exists(tree / "build"));
      CHECK_FALSE(fs::exists(tree / ".cache"));
    }
  }
}

TEST_CASE("scripts refuse words that they do not know, with their usage") {
  const TempFolder tree;
  fs::create_directories(tree / "scripts");
  for (const char* name : {"common.sh", "build", "quickstart"}) {
    fs::copy(SourceFile(std::string("scripts/") + name), tree / "scripts");
  }
  for (const std::string call : {"quickstart' --fast", "build' eventide", "build' --target"}) {
    CAPTURE(call);
    CHECK(Script(tree, call) == 2);
    CHECK(ReadFile(tree / "out").empty());
    CHECK_FALSE(ReadFile(tree / "errors").empty());
    CHECK_FALSE(fs::exists(tree / "build"));
  }
}

}  // namespace
}  // namespace eventide
