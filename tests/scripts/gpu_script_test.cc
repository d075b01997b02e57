// scripts/gpu-test on a machine without a GPU: programs that pretend.
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/support/temp_folder.h"
#include "tests/support/test.h"

namespace eventide {
namespace {

namespace fs = std::filesystem;

class PretendTree {
 public:
  PretendTree() {
    for (const char* folder : {"bin", "build/tests", "build/bench"})
      fs::create_directories(folder_ / folder);
    Program("bin/nvidia-smi", "echo 'Pretend \"9000\", 1.2'");
    Program("build/eventide", "case \"$*\" in *--help) ;; *) echo \"{\\\"model\\\": \\\"$4\\\"}\" ;; esac");
  }

  void Program(const std::string& path, const std::string& body) {
    WriteFile(folder_ / path, "#!/bin/sh\n" + body + "\n");
    fs::permissions(folder_ / path, fs::perms::owner_all);
  }

  // Exit code; what it wrote, if that is JSON.
  int Run(const std::string& arguments, nlohmann::json* report) {
    const std::string output = folder_ / "out.json";
    fs::remove(output);
    const std::string command = "PATH='" + (folder_ / "bin") + "':\"$PATH\" '" +
                                SourceFile("scripts/gpu-test") + "' --build '" + (folder_ / "build") +
                                "' --output '" + output + "' " + arguments + " 2>/dev/null";
    const int status = std::system(command.c_str());
    *report = nlohmann::json::parse(ReadFile(output), nullptr, /*allow_exceptions=*/false);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  TempFolder folder_;
};

TEST_CASE("gpu-test runs tests, campaign and benchmarks and reports what they said") {
  PretendTree tree;
  tree.Program("build/tests/test_a_gpu",
               "printf 'bits: \"7\" runs\\n\\n=====\\nAll \\\\ passed\\t(3)\\n'");
  tree.Program("build/tests/test_b_gpu", "echo 'SKIPPED: none'");
  tree.Program("build/bench/step_campaign", "echo \"campaign $*\"");
  nlohmann::json report;
  CHECK(tree.Run("--steps 77", &report) == 0);
  REQUIRE(report.is_object());
  CHECK(report["gpu"] == "Pretend \"9000\", 1.2 ");
  CHECK(report["failed"] == false);
  REQUIRE(report["tests"].size() == 3);
  CHECK(report["tests"][0]["name"] == "test_a_gpu");
  CHECK(report["tests"][0]["status"] == 0);
  CHECK(report["tests"][0]["text"] == "bits: \"7\" runs All \\ passed (3) ");
  CHECK(report["tests"][1]["skipped"] == true);
  CHECK(report["tests"][2]["text"] == "campaign 1 77 cuda ");
  REQUIRE(report["bench"].size() == 4);
  CHECK(report["bench"][0]["model"] == "random:llama-3.2-1b");
}

TEST_CASE("gpu-test fails with a test that fails and with one that hangs, and runs the others") {
  PretendTree tree;
  tree.Program("build/tests/test_a_gpu", "sleep 60");
  tree.Program("build/tests/test_b_gpu", "echo wrong; exit 3");
  tree.Program("build/tests/test_c_gpu", "echo fine");
  nlohmann::json report;
  CHECK(tree.Run("--no-bench --limit 1", &report) == 1);
  REQUIRE(report.is_object());
  CHECK(report["failed"] == true);
  REQUIRE(report["tests"].size() == 3);
  CHECK(report["tests"][0]["status"] == 124);
  CHECK(report["tests"][1]["status"] == 3);
  CHECK(report["tests"][2]["status"] == 0);
  CHECK(report["bench"].empty());
}

TEST_CASE("gpu-test runs what is asked for, and says when that is nothing") {
  PretendTree tree;
  tree.Program("build/tests/test_a_gpu", "echo a");
  tree.Program("build/tests/test_b_gpu", "echo b");
  nlohmann::json report;
  CHECK(tree.Run("--only '*_b_*'", &report) == 0);
  REQUIRE(report["tests"].size() == 1);
  CHECK(report["tests"][0]["text"] == "b ");
  CHECK(report["bench"].empty());
  CHECK(tree.Run("--only bench", &report) == 0);
  CHECK(report["tests"].empty());
  CHECK(report["bench"].size() == 4);
  CHECK(tree.Run("--only nothing", &report) == 1);
  CHECK(tree.Run("--build /no/such/folder", &report) == 2);
  CHECK(tree.Run("--limit", &report) == 2);
  CHECK(tree.Run("--faster", &report) == 2);
}

}  // namespace
}  // namespace eventide
