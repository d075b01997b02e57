// eventide cache add: what a machine without a GPU compiles is what a start on one looks for.
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "jit/cache.h"
#include "jit/nvrtc.h"
#include "tests/support/run_binary.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test.h"

namespace eventide {
namespace {

using Json = nlohmann::json;

TEST_CASE("a kernel that was added is not compiled again, and a start finds it") {
  const absl::StatusOr<const Nvrtc*> nvrtc = Nvrtc::Get();
  if (!nvrtc.ok()) return Skip(std::string(nvrtc.status().message()));
  if (Missing()) return;
  const TempFolder folder;
  ::setenv("EVENTIDE_CACHE_DIR", folder.path().c_str(), 1);
  for (const bool first : {true, false}) {
    // Whatever the device is of which a start's flags speak.
    const Ran ran = Run("cache add --model random:test-llama --device cuda --arch sm_90a --json");
    REQUIRE(ran.code == 0);
    const Json json = Json::parse(ran.out);
    CHECK(json["folder"] == folder.path());
    REQUIRE(json["kernels"].size() == 3);
    for (const Json& kernel : json["kernels"]) {
      CHECK(kernel["arch"] == "sm_90a");
      CHECK(kernel["compiled"] == first);
      CHECK(kernel["cubin_bytes"] > 10000);
    }
  }
  // A driver that only pretends, with an H100's compute capability. Number of blocks and lengths are no part of a kernel.
  ::setenv("LD_LIBRARY_PATH", (std::string(EVENTIDE_BINARY_ROOT) + "/tests/fakes/driver").c_str(), 1);
  ::setenv("FAKE_CUDA", "free=8192", 1);
  const std::string rest = " --model random:test-llama --device cuda --num-blocks 100 --max-model-len 300 ";
  const std::string line = folder.path() + "/line.jsonl";
  WriteFile(line, "{\"id\": 1, \"tokens\": [1, 2, 3]}\n");
  const auto kernels_after = [&](const std::string& command) {
    const Ran start = RunForErrors(command + rest);
    INFO(start.out);
    const auto kept = KernelCache(folder.path()).List();
    REQUIRE(kept.ok());
    return kept->size();
  };
  CHECK(kernels_after("generate --tokens 1 --max-tokens 1") == 3);
  CHECK(kernels_after("score --input '" + line + "' --output /dev/null") == 3);
  CHECK(kernels_after("replay --requests 1 --trace '" + SourceFile("data/traces/sample_200.csv") + "'") == 3);
  CHECK(kernels_after("generate --tokens 1 --max-tokens 1 --max-num-seqs 33") == 4);  // a start that must compile does
}

}  // namespace
}  // namespace eventide
