#include "jit/arch.h"

#include <sys/wait.h>
#include <unistd.h>

#include "jit/nvrtc.h"
#include "runtime/cuda_device.h"
#include "tests/support/test.h"

namespace eventide {
namespace {

TEST_CASE("every architecture is found by its number and its name") {
  for (const GpuArch& arch : GpuArchs()) {
    const absl::StatusOr<const GpuArch*> by_number = ArchFor(arch.major, arch.minor);
    REQUIRE(by_number.ok());
    CHECK(*by_number == &arch);
    const absl::StatusOr<const GpuArch*> by_name = ArchByName(arch.name);
    REQUIRE(by_name.ok());
    CHECK(*by_name == &arch);
    CHECK(arch.shared_bytes >= 99 * 1024);
    INFO(arch.header << " is embedded");
    CHECK(CollectHeaders(absl::StrCat("#include \"", arch.header, "\"\n")).ok());
  }
}

TEST_CASE("an unknown architecture is refused with those that exist") {
  for (const absl::Status& status : {ArchFor(7, 5).status(), ArchByName("sm_75").status()}) {
    CHECK_FALSE(status.ok());
    CHECK(std::string(status.message()).find("sm_90a") != std::string::npos);
  }
}

// In a process of its own: what was loaded stays loaded.
template <class F>
int InChild(const F& body) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(body());
  int status = -1;
  return ::waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_CASE("a wrong EVENTIDE_NVRTC is named, and another library is not taken for NVRTC") {
  const auto message_with = [](const char* path, const char* wanted) {
    return InChild([&] {
      ::setenv("EVENTIDE_NVRTC", path, 1);
      const absl::Status status = Nvrtc::Get().status();
      const std::string text(status.message());
      return !status.ok() && text.find(path) != std::string::npos &&
                     text.find(wanted) != std::string::npos
                 ? 0
                 : 1;
    });
  };
  CHECK(message_with("/nowhere/libnvrtc.so", "EVENTIDE_NVRTC") == 0);
  CHECK(message_with("libc.so.6", "lacks nvrtcVersion") == 0);
}

TEST_CASE("a machine without a GPU says what is missing") {
  std::string why;
  if (CudaAvailable(&why)) return Skip("this machine has a GPU");
  CHECK_FALSE(why.empty());
  CudaDevice device;
  CHECK_FALSE(device.Open(0).ok());
}

}  // namespace
}  // namespace eventide
