// ThreadSanitizer watches whole decoders on threads: the shipped CPU backend's loop, and generated
// source through the host's compiler. It sees missing orders that neither threads nor the simulator
// show; that it does is shown by two planted ones.
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <sstream>

#include "tests/support/temp_folder.h"
#include "tests/support/test.h"

namespace eventide {
namespace {

constexpr int kRaceReported = 66;  // TSan's exit status

struct Outcome {
  int status = -1;
  std::string text;
};

Outcome Run(const std::string& command) {
  Outcome outcome;
  std::FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::array<char, 4096> chunk;
  while (const size_t n = std::fread(chunk.data(), 1, chunk.size(), pipe))
    outcome.text.append(chunk.data(), n);
  const int status = ::pclose(pipe);
  outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

// Fixed addresses: some kernels' random ones are beyond what TSan of some compilers knows.
std::string Watched() {
  static const bool setarch = Run("setarch -R true").status == 0;
  return std::string("TSAN_OPTIONS=halt_on_error=1 ") + (setarch ? "setarch -R " : "") +
         EVENTIDE_BINARY_ROOT "/tests/decoder_under_tsan ";
}

bool HaveProgram() {
  if (std::filesystem::exists(EVENTIDE_BINARY_ROOT "/tests/decoder_under_tsan")) return true;
  Skip("this compiler has no ThreadSanitizer");
  return false;
}

void CheckClean(const std::string& arguments) {
  const Outcome outcome = Run(Watched() + arguments);
  INFO(arguments << ": " << outcome.text);
  CHECK(outcome.status == 0);
  CHECK(outcome.text == "4 steps\n");
}

void CheckReported(const std::string& arguments) {
  const Outcome outcome = Run(Watched() + arguments);
  INFO(arguments << ": " << outcome.text);
  CHECK(outcome.status == kRaceReported);
  CHECK(outcome.text.find("data race") != std::string::npos);
}

TEST_CASE("ThreadSanitizer finds nothing in a decoder on the CPU backend") {
  if (!HaveProgram()) return;
  for (const char* policy : {"static", "ticket"}) {
    for (const char* workers : {"2", "4"}) {
      CheckClean(std::string("shipped ") + policy + " " + workers);
      CheckClean(std::string("early-exit:shipped ") + policy + " " + workers);
      CheckClean(std::string("early-exit-moe:shipped ") + policy + " " + workers);
    }
  }
}

TEST_CASE("ThreadSanitizer reports notifies that do not release") {
  if (!HaveProgram()) return;
  CheckReported("forgetful static 4");
}

// The generated source of the decoder and the real headers, with `atomics` in place of
// device/atomic.h.
std::string Compile(const TempFolder& folder, const std::string& atomics, const std::string& decoder = "") {
  const std::string source = folder.path() + "/step.cc", library = folder.path() + "/step.so";
  const std::string override_folder = folder.path() + "/override/device";
  std::filesystem::create_directories(override_folder);
  std::ofstream(override_folder + "/atomic.h") << atomics;
  REQUIRE(Run(Watched() + decoder + "source static 1 >" + source).status == 0);
  const Outcome outcome =
      Run("c++ -std=c++20 -O1 -g1 -fPIC -shared -ffp-contract=off -fsanitize=thread -I" +
          folder.path() + "/override -I" + SourceFile("") + " " + source + " -o " + library);
  INFO(outcome.text);
  REQUIRE(outcome.status == 0);
  return library;
}

std::string Atomics() {
  std::ifstream file(SourceFile("device/atomic.h"));
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

bool HaveCompiler() {
  if (Run("c++ --version").status == 0) return true;
  Skip("no C++ compiler on this machine");
  return false;
}

TEST_CASE("ThreadSanitizer finds nothing in a generated decoder") {
  if (!HaveProgram() || !HaveCompiler()) return;
  const TempFolder folder;
  const std::string library = Compile(folder, Atomics());
  CheckClean(library + " static 4");
  CheckClean(library + " ticket 4");
}

TEST_CASE("ThreadSanitizer finds nothing in a generated mixture of experts with early exit") {
  if (!HaveProgram() || !HaveCompiler()) return;
  const TempFolder folder;
  const std::string library = Compile(folder, Atomics(), "early-exit-moe:");
  CheckClean("early-exit-moe:" + library + " static 4");
  CheckClean("early-exit-moe:" + library + " ticket 3");
}

TEST_CASE("ThreadSanitizer reports a relaxed acquire in a generated decoder") {
  if (!HaveProgram() || !HaveCompiler()) return;
  const TempFolder folder;
  std::string atomics = Atomics();
  const std::string good =
      "LoadAcquire(const u32* p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE)";
  const size_t at = atomics.find(good);
  REQUIRE(at != std::string::npos);
  atomics.replace(at, good.size(),
                  "LoadAcquire(const u32* p) { return __atomic_load_n(p, __ATOMIC_RELAXED)");
  CheckReported(Compile(folder, atomics) + " static 4");
}

}  // namespace
}  // namespace eventide
