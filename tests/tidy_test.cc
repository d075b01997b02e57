// The house's rules hold for every source; and each rule objects to what it is there for.
#include "tests/support/tidy.h"

namespace eventide {
namespace {

using tidy::Breaches;
using tidy::File;
using tidy::Files;

const Files& Tree() {
  static const Files tree = tidy::ReadTree(SourceFile(""));
  return tree;
}

TEST_CASE("the sources keep to the rules of the house") {
  REQUIRE(Tree().size() > 100);
  for (const tidy::NamedRule& rule : tidy::Rules()) {
    for (const std::string& breach : rule.find(Tree())) FAIL_CHECK(rule.name << ": " << breach);
  }
}

TEST_CASE("each folder's tests lie where the folder's name says") {
  for (const File& f : Tree()) {
    if (!tidy::Starts(f.path, "tests/") || !tidy::Ends(f.path, "_test.cc")) continue;
    const std::string rest = f.path.substr(6);
    if (rest.find('/') == std::string::npos) continue;
    const std::string folder = tidy::FolderOf(rest);
    CAPTURE(f.path);
    CHECK(std::filesystem::is_directory(SourceFile(folder)));
  }
}

TEST_CASE("every rule objects to what breaks it, and to nothing in a plain file") {
  const std::string head = "// What it is for.", once = "#pragma once";
  const auto header = [&](std::string path, std::vector<std::string> lines) {
    lines.insert(lines.begin(), {head, once});
    return File{std::move(path), std::move(lines)};
  };
  const File plain = header("core/plain.h", {"#include \"core/expr.h\"", "int Plain();"});
  for (const tidy::NamedRule& rule : tidy::Rules()) CHECK(rule.find({plain}).empty());

  const auto broken = [](Breaches (*find)(const Files&), const Files& files) {
    return !find(files).empty();
  };
  CHECK(broken(tidy::WrongArrows, {header("core/a.h", {"#include \"runtime/executor.h\""})}));
  CHECK(broken(tidy::WrongArrows, {header("serve/a.h", {"#include \"jit/nvrtc.h\""})}));
  CHECK(broken(tidy::WrongArrows, {header("device/a.h", {"#include \"core/status.h\""})}));
  CHECK(broken(tidy::WrongArrows, {header("ops/a.h", {"#include \"linear.h\""})}));
  CHECK(broken(tidy::IncludeCycles, {header("core/a.h", {"#include \"core/b.h\""}),
                                     header("core/b.h", {"#include \"core/a.h\""})}));
  CHECK(broken(tidy::TargetConditionals, {header("ops/a.h", {"#if 1"})}));
  CHECK(broken(tidy::TargetConditionals, {header("serve/a.h", {"#ifdef __AVX2__"})}));
  CHECK_FALSE(broken(tidy::TargetConditionals, {header("serve/a.h", {"#if EVENTIDE_FLAG"})}));
  CHECK(broken(tidy::ArchitectureNames, {header("runtime/a.h", {"int x = Is(\"sm_90a\");"})}));
  CHECK(broken(tidy::ArchitectureNames, {header("ops/a.cuh", {})}));
  CHECK(broken(tidy::SystemHeaders, {header("ops/a.h", {"#include <cstdint>"})}));

  const std::string info = "  static constexpr OpInfo kInfo = {\"two_words\", 1, {}};";
  const File op = header("ops/two_words.h", {"struct TwoWords {", info, "};"});
  const File test{"tests/ops/two_words_cpu_test.cc", {"Call<TwoWords>();"}};
  CHECK_FALSE(broken(tidy::OpConventions, {op, test}));
  CHECK(broken(tidy::OpConventions, {op}));
  CHECK(broken(tidy::OpConventions, {header("ops/two_words.h", {"struct Two {", info}), test}));
  CHECK(broken(tidy::OpConventions, {header("ops/two_words_more.h", op.lines), test}));

  CHECK(broken(tidy::Headers, {File{"core/a.h", {once}}}));
  CHECK(broken(tidy::Headers, {File{"core/a.h", {head, "#include <vector>", once}}}));
  File lengthy = header("core/a.h", std::vector<std::string>(tidy::kMostLines, "int x;"));
  CHECK(broken(tidy::LongFiles, {lengthy}));
  lengthy.lines[0] = "// Longer than 400 lines because it is one table.";
  CHECK_FALSE(broken(tidy::LongFiles, {lengthy}));

  for (const size_t lines : {tidy::kMostFunctionLines - 2, tidy::kMostFunctionLines - 1}) {
    for (const std::string indent : {"", "  "}) {
      std::vector<std::string> body(lines, indent + "  x();");
      body.insert(body.begin(), indent + "void F() {");
      body.insert(body.begin() + 1, indent + "  // A comment does not count.");
      body.push_back(indent + "}");
      CHECK(broken(tidy::LongFunctions, {File{"core/a.cc", body}}) ==
            (lines == tidy::kMostFunctionLines - 1));
    }
  }
  CHECK(broken(tidy::EnvironmentVariables,
               {File{"jit/a.cc", {"x = std::getenv(\"EVENTIDE_FAST\");"}}}));
  CHECK(broken(tidy::EnvironmentVariables,
               {File{"jit/a.cc", {"x = std::getenv(name);", "y = Value(\"EVENTIDE_FAST\");"}}}));
  CHECK_FALSE(broken(tidy::EnvironmentVariables,
                     {File{"jit/a.cc", {"x = std::getenv(\"EVENTIDE_NVRTC\");"}}}));
  for (const std::string& line : std::vector<std::string>{
           std::string("// TO") + "DO: later", "std::cout << 1;", "printf(\"x\");", "  exit(1);",
           "  throw 1;", "using namespace std;", "#define TWICE(x) x x", "int x; ", "\tint x;",
           std::string("#include \"absl/") + "synchronization/mutex.h\""}) {
    CAPTURE(line);
    CHECK(broken(tidy::Forbidden, {File{"core/a.cc", {line}}}));
  }
  CHECK_FALSE(broken(tidy::Forbidden, {File{"core/a.cc", {"snprintf(x, 1, \"y\");", "Exit(1);"}}}));
}

}  // namespace
}  // namespace eventide
