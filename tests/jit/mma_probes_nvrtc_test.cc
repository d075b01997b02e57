// The probes of matrix instructions compile: mma.sync everywhere, wgmma of all widths where it is.
#include "tests/support/mma_probe.h"

#include <iostream>
#include <regex>

#include "jit/arch.h"
#include "tests/support/test.h"

namespace eventide {
namespace {

TEST_CASE("every form of matrix instruction compiles into a kernel of its own, without spills") {
  const absl::StatusOr<const Nvrtc*> nvrtc = Nvrtc::Get();
  if (!nvrtc.ok()) return Skip(std::string(nvrtc.status().message()));
  for (const char* name : {"sm_80", "sm_90a", "sm_100a"}) {
    const bool wgmma = std::string(name) == "sm_90a";
    const auto compiled = CompileMmaProbe(**ArchByName(name), wgmma);
    INFO(name << ": " << compiled.status().ToString());
    REQUIRE(compiled.ok());
    const auto count = [&](const char* pattern) {
      const std::regex regex(pattern);
      return std::distance(std::sregex_iterator(compiled->ptx.begin(), compiled->ptx.end(), regex),
                           std::sregex_iterator());
    };
    std::cout << name << ": " << count("\\.entry ") << " kernels, " << compiled->cpu_milliseconds
              << " ms of CPU\n";
    CHECK(count("\\.entry ") == (wgmma ? 2 + 2 * kWgmmaWidths : 2));
    CHECK(count("wgmma\\.mma_async") == (wgmma ? 2 * kWgmmaWidths : 0));
    CHECK(count("mma\\.sync\\.aligned\\.m16n8k16") == 2);
    CHECK(std::regex_search(compiled->log, std::regex("[1-9][0-9]* bytes spill")) == false);
  }
}

}  // namespace
}  // namespace eventide
