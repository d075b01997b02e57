// A start that cannot work says what is missing and what to do about it, in one error: drivers and
// compilers that are absent, too old or for another GPU, and too little memory. The driver and the
// compiler are fakes (tests/fakes/), so no GPU is needed.
#include "tests/support/run_binary.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test.h"

namespace eventide {
namespace {

const std::string kFakes = std::string(EVENTIDE_BINARY_ROOT) + "/tests/fakes";

// stdout and stderr of a start on CUDA in a clean environment with these variables.
Ran Start(const std::string& variables, const std::string& flags = "") {
  const TempFolder cache;
  const std::string command = "env -u EVENTIDE_NVRTC EVENTIDE_CACHE_DIR='" + cache.path() + "' " +
                              variables + " '" + Binary() +
                              "' generate --model random:test-llama --dtype bfloat16 --device cuda "
                              "--tokens 1 --max-tokens 1 " +
                              flags + " 2>&1";
  Ran ran;
  FILE* pipe = popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) ran.out.append(buffer, n);
  const int status = pclose(pipe);
  ran.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return ran;
}

std::string Driver(const std::string& broken) {
  return "LD_LIBRARY_PATH='" + kFakes + "/driver' EVENTIDE_NVRTC='" + kFakes +
         "/libfake_nvrtc.so' FAKE_CUDA='" + broken + "' ";
}

void CheckError(const Ran& ran, const std::vector<std::string>& words) {
  INFO(ran.out);
  CHECK(ran.code == 1);
  for (const std::string& word : words) {
    INFO(word);
    CHECK(ran.out.find(word) != std::string::npos);
  }
  // One line for a person, and no second error behind it.
  CHECK(ran.out.find("eventide: ") == 0);
  CHECK(ran.out.size() < 700);
}

TEST_CASE("a driver that is missing, too old or without a GPU is told, with what to do") {
  if (Missing()) return;
  CheckError(Start("LD_LIBRARY_PATH='" + kFakes + "/old_driver'"),
             {"driver", "too old", "lacks cuDriverGetVersion", "update"});
  CheckError(Start(Driver("version=11040")),
             {"driver", "CUDA 11.4", "needs 12.0", "update", "--device cpu"});
  CheckError(Start(Driver("devices=0")),
             {"no GPU is visible", "nvidia-smi", "CUDA_VISIBLE_DEVICES", "--device cpu"});
  CheckError(Start(Driver("init=100")), {"no GPU is visible", "nvidia-smi"});
  CheckError(Start(Driver("init=803")), {"driver", "update the driver"});
  CheckError(Start(Driver("init=999")), {"restart"});
}

TEST_CASE("a GPU of another generation, or one that cannot run the kernel, is told by name") {
  if (Missing()) return;
  CheckError(Start(Driver("capability=75")), {"compute capability 7.5", "sm_90a", "--device cpu"});
  CheckError(Start(Driver("cooperative=0")), {"Fake GPU", "cooperative"});
  CheckError(Start(Driver("context=2")), {"Fake GPU", "memory is full"});
}

TEST_CASE("a compiler that is missing, wrong or too old is told, with how to get one") {
  if (Missing()) return;
  const std::string driver = "LD_LIBRARY_PATH='" + kFakes + "/driver' ";
  const TempFolder folder;
  WriteFile(folder / "text.so", "not a library");
  const std::string hint = "pip install nvidia-cuda-nvrtc";
  CheckError(Start(driver + "EVENTIDE_NVRTC=/no/such/libnvrtc.so"),
             {"EVENTIDE_NVRTC", "/no/such/libnvrtc.so", hint});
  CheckError(Start(driver + "EVENTIDE_NVRTC='" + folder / "text.so" + "'"),
             {"EVENTIDE_NVRTC", "text.so", hint});
  CheckError(Start(driver + "EVENTIDE_NVRTC='" + kFakes + "/driver/libcuda.so.1'"),
             {"not a usable NVRTC", "lacks nvrtcVersion", hint});
  const std::string fake = driver + "EVENTIDE_NVRTC='" + kFakes + "/libfake_nvrtc.so' FAKE_NVRTC=";
  CheckError(Start(fake + "11.8"), {"NVRTC 11.8", "too old", hint});
  CheckError(Start(fake + "12.0"), {"NVRTC 12.0", "sm_90a", "newer"});
}

TEST_CASE("a compiler that is newer than the driver is told before anything is compiled") {
  if (Missing()) return;
  CheckError(Start(Driver("version=12040") + "FAKE_NVRTC=13.0"),
             {"NVRTC 13.0", "CUDA 12.4", "update the driver", "EVENTIDE_NVRTC"});
}

TEST_CASE("too little memory is told before anything is compiled, with what takes how much") {
  if (Missing()) return;
  const Ran ran = Start(Driver("free=3"));
  CheckError(ran, {"Fake GPU has 3 MiB free", "MiB", "weights alone", "state", "a smaller model"});
  CheckError(Start(Driver("free=20")), {"Fake GPU has 20 MiB free: lower --num-blocks"});
  // A model that fits, and too many blocks, tokens or sequences for what is left.
  CheckError(Start(Driver("free=2048"), "--num-blocks 200000"), {"Fake GPU has 2048 MiB free: lower --num-blocks"});
  CheckError(Start(Driver("free=512"), "--num-blocks 1000 --max-num-batched-tokens 1048576"),
             {"Fake GPU has 512 MiB free: lower --max-num-batched-tokens or --max-num-seqs"});
}

}  // namespace
}  // namespace eventide
