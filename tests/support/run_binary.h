// The binary as a user calls it: its exit code and what it prints on stdout.
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

// stdout only; stderr is dropped.
inline Ran Run(const std::string& arguments) {
  Ran ran;
  FILE* pipe = popen(("'" + Binary() + "' " + arguments + " 2>/dev/null").c_str(), "r");
  REQUIRE(pipe != nullptr);
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) ran.out.append(buffer, n);
  const int status = pclose(pipe);
  ran.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return ran;
}

inline bool Missing() {
  if (std::filesystem::exists(Binary())) return false;
  Skip("the binary is not built");
  return true;
}

}  // namespace eventide
