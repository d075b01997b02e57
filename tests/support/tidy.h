// The rules of the house, read off the sources: each rule takes files and returns one line of text
// for every breach, "path:line: what is wrong". Rules work on lines and simple patterns, not on
// parsed C++: they catch what slips in, not what hides.
#pragma once

#include <array>
#include <cctype>
#include <map>

#include "tests/support/source_tree.h"

namespace eventide::tidy {

// Who may include whose headers. A folder may always include itself. Entries that end in '/' are
// folders, others single headers.
inline const std::map<std::string, std::vector<std::string>>& Arrows() {
  static const std::map<std::string, std::vector<std::string>> arrows = {
      {"device", {}},
      {"ops", {"device/"}},
      // The language of graphs knows what an op declares and what both sides share; no backend.
      {"core", {"device/abi.h", "device/base.h", "device/op.h", "device/dtype.h"}},
      {"schedulers", {"core/", "device/abi.h"}},
      {"jit", {"core/", "schedulers/", "device/abi.h"}},
      {"runtime", {"core/", "schedulers/", "jit/", "device/"}},
      {"formats", {"core/"}},
      {"text", {"core/", "formats/"}},
      // Op types, and layouts that packing and ops share.
      {"models",
       {"core/", "formats/", "ops/", "device/base.h", "device/kv_view.h", "device/layout.h",
        "device/philox.h"}},
      // Of the device: the step header and the order of fragments a backend packs for.
      {"serve", {"core/", "models/", "runtime/", "text/", "device/abi.h", "device/arch/cpu.h"}},
      // Workloads made of ops and requests, against a reference; any backend.
      {"stress", {"core/", "schedulers/", "runtime/", "models/", "serve/", "ops/", "device/abi.h",
        "device/layout.h"}},
      // Runs whatever PTX there is; storage types convert as kernels' do.
      {"machine", {"device/dtype.h"}},
      {"tools",
       {"core/", "formats/", "text/", "jit/", "models/", "runtime/", "schedulers/", "serve/",
        "stress/", "device/abi.h"}},
      {"bench",
       {"core/", "formats/", "text/", "jit/", "models/", "runtime/", "schedulers/", "serve/",
        "stress/", "device/", "ops/", "tests/support/", "tests/ops/", "tests/jit/"}},
  };
  return arrows;
}

inline Breaches WrongArrows(const Files& files) {
  Breaches breaches;
  const auto wanted = [](const File& f) { return Arrows().count(FolderOf(f.path)) > 0; };
  ForMatches(
      files, "^\\s*#\\s*include \"([^\"]+)\"", wanted, [&](const File& f, size_t i, auto& m) {
        const std::string included = m[1].str(), own = FolderOf(f.path);
        if (included.find('/') == std::string::npos) {
          breaches.push_back(At(f, i, "include \"" + included + "\" by its path from the root"));
          return;
        }
        // Libraries that happen to be included with quotes (absl/, nlohmann/) are nobody's folder.
        const std::vector<std::string>& all = Folders();
        if (std::find(all.begin(), all.end(), FolderOf(included)) == all.end()) return;
        if (FolderOf(included) == own) return;
        for (const std::string& allowed : Arrows().at(own)) {
          if (Ends(allowed, "/") ? Starts(included, allowed) : included == allowed) return;
        }
        breaches.push_back(At(f, i, own + "/ may not include " + included));
      });
  return breaches;
}

// Files of the tree that include each other in a circle.
inline Breaches IncludeCycles(const Files& files) {
  std::map<std::string, std::vector<std::string>> includes;
  ForMatches(files, "^#include \"([^\"]+)\"", IsCode,
             [&](const File& f, size_t, auto& m) { includes[f.path].push_back(m[1]); });
  Breaches breaches;
  std::map<std::string, int> state;  // 1: on the way, 2: done
  const auto visit = [&](const auto& self, const std::string& path) -> void {
    state[path] = 1;
    for (const std::string& next : includes[path]) {
      if (state[next] == 1) breaches.push_back(path + ":1: a circle of includes with " + next);
      if (state[next] == 0) self(self, next);
    }
    state[path] = 2;
  };
  for (const File& file : files) {
    if (state[file.path] == 0) visit(visit, file.path);
  }
  return breaches;
}

// Code for workers is the same text on every target; the few host files that ask for a processor
// or a compiler are named here with what they ask.
inline Breaches TargetConditionals(const Files& files) {
  static const std::map<std::string, std::string> allowed = {
      {"device/base.h", "EVT_FN"},
      {"device/atomic.h", "atomic accesses"},
      {"runtime/fibre.h", "whether a switch in assembly exists"},
      {"runtime/fibre.cc", "the switch in assembly"},
      {"runtime/worker_threads.cc", "the instruction that pauses a core"},
      {"models/random_weights.cc", "clones for wider vectors"}};
  static const std::regex target(
      "__CUDA|__NVCC|__GNUC__|__clang__|_MSC_VER|__SANITIZE|__has_feature|__x86_64__|__i386__|"
      "__aarch64__|__arm|__SSE|__AVX|__F16C__|__FMA__|__linux__|_WIN32|__APPLE__");
  Breaches breaches;
  ForMatches(files, "^\\s*#\\s*(if|ifdef|ifndef|elif)\\b(.*)$", IsCode,
             [&](const File& f, size_t i, auto& m) {
               if (allowed.count(f.path)) return;
               if (IsFreestanding(f)) {
                 breaches.push_back(At(f, i, "a conditional in a header of every target"));
               } else if (std::regex_search(m[2].str(), target)) {
                 breaches.push_back(At(f, i, "asks for a compiler or a processor"));
               }
             });
  return breaches;
}

inline Breaches ArchitectureNames(const Files& files) {
  const auto wanted = [](const File& f) {
    return (IsLibrary(f) || Starts(f.path, "tools/")) && !Starts(f.path, "device/arch/") &&
           !Starts(f.path, "jit/arch.");
  };
  Breaches breaches;
  ForMatches(files, "\\b(sm|compute)_?[0-9]{2,3}[af]?\\b", wanted,
             [&](const File& f, size_t i, auto& m) {
               // Prose and the examples of a help text name what they explain.
               static const std::regex prose("^\\s*//|//.*(sm|compute)_|add_option|  eventide ");
               if (std::regex_search(f.lines[i], prose)) return;
               breaches.push_back(At(f, i, "names the architecture " + m[0].str()));
             });
  for (const File& f : files) {
    if (Ends(f.path, ".cuh") && !Starts(f.path, "device/arch/"))
      breaches.push_back(At(f, 0, "only device/arch/ has .cuh files"));
  }
  return breaches;
}

// Neither NVRTC nor a bare GPU machine has a standard library: no <...> in what every target reads.
inline Breaches SystemHeaders(const Files& files) {
  Breaches breaches;
  ForMatches(files, "^\\s*#\\s*include <([^>]+)>", IsFreestanding,
             [&](const File& f, size_t i, auto& m) {
               if (Starts(f.path, "device/arch/cpu") && m[1] == "immintrin.h") return;
               breaches.push_back(At(f, i, "includes <" + m[1].str() + ">"));
             });
  return breaches;
}

inline std::string CamelCase(const std::string& name) {
  std::string camel;
  bool upper = true;
  for (char c : name) {
    if (c == '_') {
      upper = true;
      continue;
    }
    camel += upper ? static_cast<char>(std::toupper(static_cast<unsigned char>(c))) : c;
    upper = false;
  }
  return camel;
}

inline bool Mentions(const File& f, const std::string& pattern) {
  const std::regex regex(pattern);
  return std::any_of(f.lines.begin(), f.lines.end(),
                     [&](const std::string& line) { return std::regex_search(line, regex); });
}

// ops/rms_norm.h is the op "rms_norm" and declares RmsNorm; something in tests/ops/ runs it.
inline Breaches OpConventions(const Files& files) {
  Breaches breaches;
  for (const File& f : files) {
    if (!Starts(f.path, "ops/") || !IsHeader(f) || !Mentions(f, "OpInfo kInfo")) continue;
    const std::string name = f.path.substr(4, f.path.size() - 6), type = CamelCase(name);
    if (!Mentions(f, "^struct " + type + "\\b"))
      breaches.push_back(At(f, 0, "an op, but does not declare struct " + type));
    std::string text;
    for (const std::string& line : f.lines) text += line + " ";
    std::smatch match;
    if (!std::regex_search(text, match, std::regex("kInfo = \\{\\s*\"([a-z0-9_]+)\"")) ||
        match[1] != name) {
      breaches.push_back(At(f, 0, "its kInfo must be named \"" + name + "\""));
    }
    if (std::none_of(files.begin(), files.end(), [&](const File& test) {
          return Starts(test.path, "tests/ops/") && Mentions(test, "\\b" + type + "\\b");
        })) {
      breaches.push_back(At(f, 0, "no test in tests/ops/ names " + type));
    }
  }
  return breaches;
}

inline Breaches Headers(const Files& files) {
  Breaches breaches;
  for (const File& f : files) {
    if (!IsHeader(f)) continue;
    if (f.lines.empty() || !Starts(f.lines[0], "//"))
      breaches.push_back(At(f, 0, "the first comment says what a header is for"));
    size_t i = 0;
    while (i < f.lines.size() && (Starts(f.lines[i], "//") || f.lines[i].empty())) ++i;
    if (i == f.lines.size() || f.lines[i] != "#pragma once")
      breaches.push_back(At(f, i, "#pragma once comes right after the first comment"));
  }
  return breaches;
}

constexpr size_t kMostLines = 400, kMostFunctionLines = 70;

inline Breaches LongFiles(const Files& files) {
  Breaches breaches;
  for (const File& f : files) {
    if (!IsCode(f) || f.lines.size() <= kMostLines) continue;
    std::string top;
    for (size_t i = 0; i < f.lines.size() && Starts(f.lines[i], "//"); ++i)
      top += f.lines[i].substr(2);
    if (top.find("Longer than 400 lines") == std::string::npos) {
      breaches.push_back(At(f, 0,
                            std::to_string(f.lines.size()) +
                                " lines, and no \"Longer than 400 lines because\" at the top"));
    }
  }
  return breaches;
}

// Lines of code of functions at namespace level or directly in a class, without comments and
// blanks. By the layout that clang-format gives: a body ends at a '}' below its first line.
inline Breaches LongFunctions(const Files& files) {
  // The kernel's outline: what each warp of a block does, side by side.
  static const std::set<std::string> allowed = {"RunWorkerOn"};
  static const std::regex not_function("^\\s*(inline )?(namespace|struct|class|enum|union)\\b");
  Breaches breaches;
  for (const File& f : files) {
    if (!IsLibrary(f) && !Starts(f.path, "tools/") && !Starts(f.path, "bench/")) continue;
    for (const std::string indent : {"", "  "}) {
      size_t start = 0, code = 0;
      for (size_t i = 0; i < f.lines.size(); ++i) {
        const std::string& line = f.lines[i];
        const size_t text = line.find_first_not_of(' ');
        if (text == std::string::npos || line.compare(text, 2, "//") == 0) continue;
        if (line == indent + "}" && code + 1 > kMostFunctionLines &&
            !std::regex_search(f.lines[start], not_function) &&
            std::none_of(allowed.begin(), allowed.end(), [&](const std::string& name) {
              return f.lines[start].find(name) != std::string::npos;
            })) {
          breaches.push_back(
              At(f, start, std::to_string(code + 1) + " lines of code in a function"));
        }
        const bool opens =
            text == indent.size() && line[text] != '}' && line[text] != ')' && line[text] != '#';
        code = opens ? 1 : code + 1;
        if (opens) start = i;
      }
    }
  }
  return breaches;
}

inline Breaches EnvironmentVariables(const Files& files) {
  // Eventide's own three; where caches and homes are; the conventions that terminals and Python's
  // environments (pip's NVRTC) follow. Everything else is a flag.
  static const std::set<std::string> known = {
      "EVENTIDE_CACHE_DIR", "EVENTIDE_NVRTC", "EVENTIDE_SOURCE_DIR", "XDG_CACHE_HOME", "HOME",
      "NO_COLOR",           "VIRTUAL_ENV"};
  Breaches breaches;
  const auto wanted = [](const File& f) { return IsLibrary(f) || Starts(f.path, "tools/"); };
  ForMatches(files, "getenv\\s*\\(\\s*([^)]*)\\)", wanted, [&](const File& f, size_t i, auto& m) {
    std::string name = m[1].str();
    if (name.size() > 2 && name.front() == '"') {
      name = name.substr(1, name.size() - 2);
      if (!known.count(name)) breaches.push_back(At(f, i, "reads the variable " + name));
      return;
    }
    // A helper that is given the name: its callers say it in the same file.
    const std::string pattern = "[A-Za-z]+\\(\"([A-Z][A-Z0-9_]+)\"\\)";
    ForMatches(
        {f}, pattern, [](const File&) { return true; },
        [&](const File& file, size_t line, auto& call) {
          if (!known.count(call[1].str()))
            breaches.push_back(At(file, line, "reads the variable " + call[1].str()));
        });
  });
  return breaches;
}

// What no file of ours says: words for work left undone, and what libraries must not do.
inline Breaches Forbidden(const Files& files) {
  // The patterns are spelt in pieces, so that this file obeys them.
  struct Rule {
    std::string pattern, why;
    bool (*wanted)(const File&);
  };
  const auto all = [](const File&) { return true; };
  static const std::vector<Rule> rules = {
      {std::string("\\b(TO") + "DO|FIX" + "ME|X" + "XX)\\b", "work left undone", all},
      {"\\b(std::)?(cout|cerr)\\b|(^|[^n])printf\\(|\\b(puts|putchar)\\(", "libraries do not print",
       IsLibrary},
      {"(\\bstd::|[^:.>\\w])(exit|abort|_Exit|quick_exit)\\(", "libraries do not end the process",
       IsLibrary},
      {"^\\s*throw\\b|\\{ throw\\b", "errors are absl::Status", IsLibrary},
      {"^\\s*using namespace\\b", "names are written out", IsLibrary},
      {std::string("absl/") + "synchronization", "synchronise with std::", IsCode},
      {"^\\s*#\\s*define (?!CATCH_CONFIG_)", "another macro needs an argument", IsCode},
      {"\\t| +$", "a tab or a blank at the end of a line", IsCode},
  };
  static const std::set<std::string> macros = {"core/status.h", "device/base.h"};
  Breaches breaches;
  for (const Rule& rule : rules) {
    ForMatches(files, rule.pattern, rule.wanted, [&](const File& f, size_t i, auto& m) {
      // The definitions of EVT_CHECK and its kin.
      if (macros.count(f.path) &&
          (rule.wanted == IsLibrary || m[0].str().find("define") != std::string::npos))
        return;
      const size_t text = f.lines[i].find_first_not_of(' ');
      const bool comment = text != std::string::npos && f.lines[i].compare(text, 2, "//") == 0;
      if (comment && rule.wanted == IsLibrary) return;
      breaches.push_back(At(f, i, rule.why + ": " + f.lines[i]));
    });
  }
  return breaches;
}

struct NamedRule {
  const char* name;
  Breaches (*find)(const Files&);
};

inline const std::array<NamedRule, 11>& Rules() {
  static const std::array<NamedRule, 11> rules = {{
      {"arrows between folders", WrongArrows},
      {"circles of includes", IncludeCycles},
      {"conditionals on the target", TargetConditionals},
      {"names of architectures", ArchitectureNames},
      {"system headers on the device", SystemHeaders},
      {"ops by convention", OpConventions},
      {"headers", Headers},
      {"long files", LongFiles},
      {"long functions", LongFunctions},
      {"environment variables", EnvironmentVariables},
      {"what no file says", Forbidden},
  }};
  return rules;
}

}  // namespace eventide::tidy
