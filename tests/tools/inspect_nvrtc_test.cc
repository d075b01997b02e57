// eventide inspect --kernels while it compiles: a bar on a terminal, nothing elsewhere.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "jit/nvrtc.h"
#include "tests/support/child.h"

namespace eventide {
namespace {

const std::vector<std::string> kCommand = {
    "inspect", "--model", "random:test-llama", "--kernels", "--arch", "sm_80", "--arch", "sm_90a"};

bool HaveNvrtc() {
  const absl::StatusOr<const Nvrtc*> nvrtc = Nvrtc::Get();
  if (!nvrtc.ok()) Skip(std::string(nvrtc.status().message()));
  return nvrtc.ok() && !Missing();
}

TEST_CASE("a terminal sees which architecture is being compiled, stdout only the result") {
  if (!HaveNvrtc()) return;
  std::vector<std::string> command = kCommand;
  command.push_back("--json");
  Child child(command, Child::Stderr::kTerminal);
  REQUIRE(child.Wait() == 0);
  const std::string shown = child.Terminal();
  for (const char* part : {"compiling", "sm_80", "sm_90a", " 50 %"}) {
    INFO(part);
    CHECK(shown.find(part) != std::string::npos);
  }
  CHECK(shown.find("eventide:") == std::string::npos);
  const nlohmann::json json = nlohmann::json::parse(child.output());
  CHECK(json["kernels"].size() == 2);
}

TEST_CASE("without a terminal only the lines of the result are printed, each when it is known") {
  if (!HaveNvrtc()) return;
  Child child(kCommand, Child::Stderr::kPipe);
  REQUIRE(child.ReadUntil("\n"));
  CHECK(child.output().find("sm_80 ") == 0);
  CHECK(child.output().find("sm_90a") == std::string::npos);  // it takes a compiler's time
  REQUIRE(child.Wait() == 0);
  CHECK(child.output().find("compiling") == std::string::npos);
  CHECK(std::count(child.output().begin(), child.output().end(), '\n') == 2);
}

}  // namespace
}  // namespace eventide
