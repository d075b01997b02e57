#include "jit/sources.h"

#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>

namespace eventide {
namespace {

// The names in `#include "name"` lines. Conditional includes count as included: a surplus header
// costs nothing, a missing one would be left out of the cache key.
std::vector<std::string> QuotedIncludes(const std::string& text) {
  std::vector<std::string> names;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t hash = line.find_first_not_of(" \t");
    if (hash == std::string::npos || line[hash] != '#') continue;
    const size_t word = line.find_first_not_of(" \t", hash + 1);
    if (word == std::string::npos || line.compare(word, 7, "include") != 0) continue;
    const size_t open = line.find('"', word);
    const size_t close = open == std::string::npos ? open : line.find('"', open + 1);
    if (close != std::string::npos) names.push_back(line.substr(open + 1, close - open - 1));
  }
  return names;
}

std::optional<std::string> ReadHeader(const std::vector<HeaderText>& extra,
                                      const std::string& folder, const std::string& name) {
  for (const HeaderText& file : extra) {
    if (file.name == name) return file.text;
  }
  if (folder.empty()) {
    for (const EmbeddedSource* s = kEmbeddedSources; s->name != nullptr; ++s) {
      if (name == s->name) return s->text;
    }
    return std::nullopt;
  }
  std::ifstream in(folder + "/" + name, std::ios::binary);
  if (!in) return std::nullopt;
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

}  // namespace

absl::StatusOr<std::vector<HeaderText>> CollectHeaders(const std::string& source,
                                                       const std::vector<HeaderText>& extra) {
  const char* live = std::getenv("EVENTIDE_SOURCE_DIR");
  const std::string from = live == nullptr ? "" : live;
  std::map<std::string, std::string> found;
  std::vector<std::pair<std::string, std::string>> open = {{"the generated source", source}};
  while (!open.empty()) {
    const auto [includer, text] = std::move(open.back());
    open.pop_back();
    for (const std::string& name : QuotedIncludes(text)) {
      if (found.count(name)) continue;
      std::optional<std::string> header = ReadHeader(extra, from, name);
      if (!header) {
        return absl::NotFoundError(absl::StrCat(
            includer, " includes \"", name, "\", which ",
            from.empty() ? "is not embedded in this binary; only headers of device/, ops/ and "
                           "schedulers/*_device.h are"
                         : absl::StrCat("cannot be read from ", from, " (EVENTIDE_SOURCE_DIR)")));
      }
      found[name] = *header;
      open.emplace_back(name, *std::move(header));
    }
  }
  std::vector<HeaderText> headers;
  for (auto& [name, text] : found) headers.push_back({name, std::move(text)});
  return headers;
}

}  // namespace eventide
