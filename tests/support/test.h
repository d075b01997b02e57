// The one place that includes Catch2 (2.x as in Debian 12, or 3.x), and how a test says it was skipped.
#pragma once

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;
#else
#include <catch2/catch.hpp>
#endif

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <optional>
#include <string>

namespace eventide {

// ctest shows the test as skipped when it prints this line (SKIP_REGULAR_EXPRESSION).
inline void Skip(const std::string& reason) { std::cout << "SKIPPED: " << reason << std::endl; }

// A file below the folder given at configure time as -DEVENTIDE_TEST_DATA (real traces, prompts,
// tokenizers, stories260K); absent files make a test skip, never fail.
inline std::optional<std::string> TestData(const std::string& relative) {
#ifdef EVENTIDE_TEST_DATA
  std::filesystem::path path = std::filesystem::path(EVENTIDE_TEST_DATA) / relative;
  if (std::filesystem::exists(path)) return path.string();
#endif
  return std::nullopt;
}

// A file of the repository itself, such as tests/golden/...
inline std::string SourceFile(const std::string& relative) {
  return std::string(EVENTIDE_SOURCE_ROOT) + "/" + relative;
}

}  // namespace eventide
