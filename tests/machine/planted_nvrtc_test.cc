// Faults planted in the kernels' own headers are found by the machine that runs them: what GPU tests on it say of kernels
// is worth as much as this.
#include <cstdio>
#include <cstdlib>

#include "tests/support/temp_folder.h"
#include "tests/support/test.h"

namespace eventide {
namespace {

namespace fs = std::filesystem;

// What a GPU test prints on the machine with an edited header: `from` becomes `to`.
std::string Planted(const std::string& header, const std::string& from, const std::string& to, const std::string& test) {
  const TempFolder tree;
  for (const char* folder : {"device", "ops", "schedulers", "models"}) {
    fs::copy(SourceFile(folder), tree / folder, fs::copy_options::recursive);
  }
  std::string text = ReadFile(tree / header);
  const size_t at = text.find(from);
  INFO(header << " has no " << from);
  REQUIRE(at != std::string::npos);
  WriteFile(tree / header, text.replace(at, from.size(), to));
  const std::string command = "EVENTIDE_SOURCE_DIR='" + tree.path() + "' PTX_MACHINE_CACHE='" + (tree / "cache") +
                              "' PTX_MACHINE=workers=3,slower=100 '" + SourceFile("scripts/ptx-machine") + "' '" +
                              EVENTIDE_BINARY_ROOT + "/tests/" + test + " 2>&1";
  std::string out;
  FILE* pipe = popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) out.append(buffer, n);
  pclose(pipe);
  return out;
}

bool Says(const std::string& out, const std::string& what) { return out.find(what) != std::string::npos; }

TEST_CASE("planted in kernels: a role without its barrier, a page that is read before it is there") {
  const std::string sums = "test_ops_page_sum_gpu'", norms = "test_ops_ops_gpu' 'embedding*'";
  const std::string sound = Planted("device/arch/nvidia.cuh", "namespace eventide {", "namespace eventide {", sums);
  if (Says(sound, "SKIPPED: ")) return Skip("no NVRTC");
  INFO(sound);
  CHECK(Says(sound, "All tests passed"));
  CHECK_FALSE(Says(sound, "PTX machine: launch"));

  const std::string no_barrier = Planted("device/arch/nvidia_compute.cuh",
                                         "asm volatile(\"barrier.sync 1, %0;\" ::\"n\"(kComputeThreads) : \"memory\");", "", norms);
  INFO(no_barrier);
  CHECK(Says(no_barrier, "a race"));
  CHECK(Says(no_barrier, "device/arch/nvidia_compute.cuh"));

  const std::string early = Planted("device/arch/bulk_copy.cuh", "mbarrier.arrive.expect_tx.shared::cta.b64 t, [%0], %1; }",
                                    "mbarrier.arrive.expect_tx.shared::cta.b64 t, [%0], 0; }", sums);
  INFO(early);
  CHECK((Says(early, "a race") || Says(early, "FAILED")));
  CHECK(Says(early, "PTX machine: launch"));
}

}  // namespace
}  // namespace eventide
