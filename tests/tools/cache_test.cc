// The binary's view of the folder of compiled kernels.
#include "jit/cache.h"

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "tests/support/run_binary.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test.h"

namespace eventide {
namespace {

using Json = nlohmann::json;

TEST_CASE("cache lists what is kept, says what is damaged, and clears it") {
  if (Missing()) return;
  const TempFolder folder;
  ::setenv("EVENTIDE_CACHE_DIR", folder.path().c_str(), 1);
  const KernelCache cache(folder.path());
  const std::string one = KernelCache::Key({"one"}), two = KernelCache::Key({"two"});
  for (const std::string& key : {one, two}) {
    REQUIRE(cache.GetOrMake(key, [] { return absl::StatusOr<std::string>("kernel"); }).ok());
  }
  WriteFile(cache.EntryPath(two), "broken");
  const Ran listed = Run("cache list --json");
  REQUIRE(listed.code == 0);
  const Json json = Json::parse(listed.out);
  CHECK(json["folder"] == folder.path());
  REQUIRE(json["entries"].size() == 2);
  for (const Json& entry : json["entries"]) CHECK(entry["damaged"] == (entry["key"] == two));
  const Ran text = Run("cache list");
  CHECK(text.out.find("2 kernels") != std::string::npos);
  CHECK(text.out.find("damaged") != std::string::npos);
  const Ran cleared = Run("cache clear --json");
  REQUIRE(cleared.code == 0);
  CHECK(Json::parse(cleared.out)["removed"] == 2);
  CHECK(Json::parse(Run("cache list --json").out)["entries"].empty());
  CHECK(Run("cache --help").out.find("eventide cache clear") != std::string::npos);
}

TEST_CASE("cache add finds out that a folder keeps nothing before it compiles") {
  if (Missing()) return;
  ::setenv("EVENTIDE_CACHE_DIR", "/dev/null/folder", 1);
  ::setenv("EVENTIDE_NVRTC", (std::string(EVENTIDE_BINARY_ROOT) + "/tests/fakes/libfake_nvrtc.so").c_str(), 1);
  const std::string call = "cache add --model random:test-llama --arch sm_90a";
  const Ran unwritable = RunForErrors(call);
  CHECK(unwritable.code == 1);
  CHECK(unwritable.out.find("could not be kept: cannot create /dev/null/folder") != std::string::npos);
  const TempFolder folder;
  ::setenv("EVENTIDE_CACHE_DIR", folder.path().c_str(), 1);
  CHECK(RunForErrors(call).out.find("it does not know this GPU") != std::string::npos);  // the compiler was asked
  CHECK(Json::parse(Run("cache list --json").out)["entries"].empty());
  ::unsetenv("EVENTIDE_NVRTC");
}

}  // namespace
}  // namespace eventide
