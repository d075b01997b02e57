// scripts/gpu-test and scripts/gpu-shapes on a machine without a GPU: programs that pretend.
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <map>
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
  int Run(const std::string& arguments, nlohmann::json* report,
          const std::string& script = "gpu-test") {
    const std::string output = folder_ / "out.json";
    fs::remove(output);
    const std::string command = "PATH='" + (folder_ / "bin") + "':\"$PATH\" '" +
                                SourceFile("scripts/" + script) + "' --build '" + (folder_ / "build") +
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
  CHECK(tree.Run("--output /no/such/folder/out.json", &report) == 2);
}

TEST_CASE("gpu-shapes runs every part with its own limit and keeps what each printed") {
  PretendTree tree;
  // Says what it was asked for; prefill fails without a word, stress with one, and warm-ups of "slow" hang.
  tree.Program("build/eventide",
               "case \"$*\" in\n"
               "*prefill*) echo 'no \"luck\"' >&2; exit 1 ;;\n"
               "*slow*) exec sleep 60 ;;\n"
               "esac\n"
               "echo \"{\\\"asked\\\": \\\"$*\\\"}\"\n"
               "case \"$1\" in stress) exit 1 ;; esac");
  nlohmann::json report;
  CHECK(tree.Run("--seconds 7 --trace t.csv --requests 9 --closed-loop 3 --start-models slow,fast "
                 "--limit warmup=1 --batches 1..3 --chunks 5,6 --steps 2",
                 &report, "gpu-shapes") == 1);
  REQUIRE(report.is_object());
  CHECK(report["gpu"] == "Pretend \"9000\", 1.2 ");
  CHECK(report["failed"] == true);
  std::map<std::string, int> status;
  for (const auto& part : report["parts"]) status[part["name"]] = part["status"];
  CHECK(status == std::map<std::string, int>{{"prefill", 1},
                                             {"shapes", 0},
                                             {"warmup slow", 124},
                                             {"warmup fast", 0},
                                             {"replay", 0},
                                             {"stress", 1}});
  CHECK(report["parts"][0]["text"] == "no \"luck\" ");
  CHECK(report["prefill"].is_null());
  CHECK(report["shapes"]["asked"] ==
        "bench shapes --model random:llama-3.1-8b --steps 2 --batch 1..3 --chunk 5,6 --mixed 1,8,64 "
        "--seconds 240 --device cuda --json");
  REQUIRE(report["warmup"].size() == 2);
  CHECK(report["warmup"][0].is_null());
  CHECK(report["warmup"][1]["asked"] == "warmup --model fast --compare --device cuda --json");
  CHECK(report["replay"]["asked"] ==
        "replay --model random:llama-3.1-8b --trace t.csv --requests 9 --closed-loop 3 --verify 50 --device cuda "
        "--json");
  CHECK(report["stress"]["asked"] == "stress --seconds 7 --device cuda --json");  // although it failed
}

TEST_CASE("gpu-shapes runs the parts that are asked for, in that order") {
  PretendTree tree;
  tree.Program("build/eventide", "echo '{}'");
  nlohmann::json report;
  CHECK(tree.Run("--parts mixed,prefill", &report, "gpu-shapes") == 0);
  REQUIRE(report["parts"].size() == 2);
  CHECK(report["parts"][0]["name"] == "mixed");
  CHECK(report["failed"] == false);
  CHECK_FALSE(report.contains("replay"));
  for (const char* wrong : {"--parts decode", "--parts", "--limit decode=1", "--limit replay", "--steps x",
                            "--faster 1", "--build /no/such/folder", "--parts ''", "--parts ,", "--limit =5",
                            "--seconds 08", "--output /no/such/folder/out.json"}) {
    CAPTURE(wrong);
    CHECK(tree.Run(wrong, &report, "gpu-shapes") == 2);
  }
  CHECK(tree.Run("--parts warmup,mixed,warmup --start-models 'a\"b'", &report, "gpu-shapes") == 0);
  REQUIRE(report.is_object());
  CHECK(report["parts"].size() == 2);
  CHECK(report["parts"][0]["name"] == "warmup a\"b");
}

TEST_CASE("an interrupt ends gpu-shapes and the part that runs, and what there is is written") {
  PretendTree tree;
  // The script is the one who waits for it; it ends by the interrupt that is passed on.
  tree.Program("build/eventide",
               "case \"$*\" in *mixed*) echo '{}' ;; *) kill -INT $(awk '/^PPid/ {print $2}' /proc/$PPID/status);"
               " exec sleep 60 ;; esac");
  nlohmann::json report;
  CHECK(tree.Run("--parts mixed,prefill,replay", &report, "gpu-shapes") == 130);
  REQUIRE(report.is_object());
  CHECK(report["parts"].size() == 2);
  CHECK(report["failed"] == true);
  CHECK_FALSE(report.contains("replay"));
}

}  // namespace
}  // namespace eventide
