// The binary as a user calls it: its exit code and what it prints.
#pragma once

#include <sys/wait.h>

#include <cstdio>
#include <filesystem>
#include <string>

#include "tests/support/test.h"

namespace eventide {

struct Ran {
  int code = -1;
  std::string out;
};

inline std::string Binary() {
  return std::string(EVENTIDE_BINARY_ROOT) + "/eventide";
}

inline Ran RunWith(const std::string& arguments, const std::string& redirections) {
  Ran ran;
  FILE* pipe = popen(("'" + Binary() + "' " + arguments + " " + redirections).c_str(), "r");
  REQUIRE(pipe != nullptr);
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) ran.out.append(buffer, n);
  const int status = pclose(pipe);
  ran.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return ran;
}

// stdout only; stderr is dropped.
inline Ran Run(const std::string& arguments) {
  return RunWith(arguments, "2>/dev/null");
}
// `out` is stderr; stdout is dropped.
inline Ran RunForErrors(const std::string& arguments) {
  return RunWith(arguments, "2>&1 >/dev/null");
}

inline bool Missing() {
  if (std::filesystem::exists(Binary())) return false;
  Skip("the binary is not built");
  return true;
}

}  // namespace eventide
