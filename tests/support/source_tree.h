// The source tree as lines of text, and what kinds of files it has.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "tests/support/test.h"

namespace eventide::tidy {

struct File {
  std::string path;  // from the root, with '/'
  std::vector<std::string> lines;
};

using Files = std::vector<File>;
using Breaches = std::vector<std::string>;

inline const std::vector<std::string>& Folders() {
  static const std::vector<std::string> folders = {
      "core",   "device", "ops",   "schedulers", "jit",   "runtime", "formats", "text",
      "models", "serve",  "stress", "machine", "tools", "bench", "tests", "cmake",   "scripts", "docs"};
  return folders;
}

inline Files ReadTree(const std::string& root) {
  namespace fs = std::filesystem;
  Files files;
  const auto add = [&](const fs::path& path) {
    static const std::set<std::string> kinds = {".h",     ".cc", ".cuh", ".txt",
                                                ".cmake", ".md", ".py"};
    const std::string extension = path.extension().string();
    if (!kinds.count(extension) && !extension.empty()) return;
    File file{fs::relative(path, root).generic_string(), {}};
    std::ifstream stream(path);
    for (std::string line; std::getline(stream, line);) file.lines.push_back(line);
    files.push_back(std::move(file));
  };
  for (const std::string& folder : Folders()) {
    if (!fs::exists(root + "/" + folder)) continue;
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root + "/" + folder)) {
      if (entry.is_regular_file() && entry.path().string().find("/golden/") == std::string::npos) {
        add(entry.path());
      }
    }
  }
  add(fs::path(root) / "CMakeLists.txt");
  add(fs::path(root) / "README.md");
  std::sort(files.begin(), files.end(),
            [](const File& a, const File& b) { return a.path < b.path; });
  return files;
}

inline bool Starts(const std::string& text, const std::string& with) {
  return text.compare(0, with.size(), with) == 0;
}
inline bool Ends(const std::string& text, const std::string& with) {
  return text.size() >= with.size() &&
         text.compare(text.size() - with.size(), with.size(), with) == 0;
}
inline std::string FolderOf(const std::string& path) {
  return path.substr(0, path.find('/'));
}
inline bool IsHeader(const File& f) {
  return Ends(f.path, ".h") || Ends(f.path, ".cuh");
}
inline bool IsCode(const File& f) {
  return IsHeader(f) || Ends(f.path, ".cc");
}
// Read by every compiler, the GPU's among them.
inline bool IsFreestanding(const File& f) {
  return Starts(f.path, "device/") || Starts(f.path, "ops/") ||
         (Starts(f.path, "schedulers/") && Ends(f.path, "_device.h"));
}
// Not a program of its own: what a user links.
inline bool IsLibrary(const File& f) {
  // machine/ is an instrument of tests: a fault leaves it from the middle of an instruction.
  static const std::set<std::string> programs = {"tools", "bench", "tests", "machine"};
  return IsCode(f) && !programs.count(FolderOf(f.path));
}

inline std::string At(const File& f, size_t line, const std::string& what) {
  return f.path + ":" + std::to_string(line + 1) + ": " + what;
}

// Calls `look` with every match of the pattern in the files that `wanted` chooses.
template <class Wanted, class Look>
void ForMatches(const Files& files, const std::string& pattern, Wanted wanted, Look look) {
  const std::regex regex(pattern);
  for (const File& file : files) {
    if (!wanted(file)) continue;
    for (size_t i = 0; i < file.lines.size(); ++i) {
      std::smatch match;
      if (std::regex_search(file.lines[i], match, regex)) look(file, i, match);
    }
  }
}

}  // namespace eventide::tidy
