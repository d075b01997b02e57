// Sixteen processes that start cold at the same moment with the real compiler: one of them
// compiles.
#include <sys/wait.h>
#include <unistd.h>

#include "jit/kernel.h"
#include "jit/nvrtc.h"
#include "tests/jit/toy_graphs.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test.h"

namespace eventide {
namespace {

TEST_CASE("of sixteen cold processes one runs the compiler, and all have the same kernel") {
  const TempFolder folder;
  const absl::StatusOr<Program> program = Lower(ToyLayersGraph());
  REQUIRE(program.ok());
  KernelOptions options;
  options.cache_folder = folder.path();
  options.extra_headers = ToyHeaders();
  const auto body = [&] {
    const auto kernel = BuildKernel(*program, **ArchByName("sm_90a"), options);
    if (!kernel.ok()) return absl::IsNotFound(kernel.status()) ? 77 : 1;
    if (kernel->usage.registers == 0 || !kernel->cache_note.empty()) return 2;
    return Nvrtc::Runs() == 1 ? 10 : 11;
  };
  // NVRTC is loaded in the children only: it has threads of its own.
  std::vector<pid_t> children;
  for (int i = 0; i < 16; ++i) {
    const pid_t pid = ::fork();
    REQUIRE(pid >= 0);
    if (pid == 0) ::_exit(body());
    children.push_back(pid);
  }
  int compiled = 0, cached = 0, absent = 0;
  for (const pid_t child : children) {
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status));
    compiled += WEXITSTATUS(status) == 10;
    cached += WEXITSTATUS(status) == 11;
    absent += WEXITSTATUS(status) == 77;
  }
  if (absent == 16) return Skip("no NVRTC on this machine");
  CHECK(compiled == 1);
  CHECK(cached == 15);
}

}  // namespace
}  // namespace eventide
