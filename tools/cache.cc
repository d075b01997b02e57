// eventide cache: the folder of compiled kernels.
#include "jit/cache.h"

#include "absl/strings/str_format.h"
#include "core/status.h"
#include "tools/command.h"

namespace eventide {
namespace {

struct CacheFlags {
  bool json = false;
};

absl::StatusOr<KernelCache> OpenCache(std::string* folder) {
  *folder = KernelCache::DefaultFolder();
  if (folder->empty()) {
    return absl::FailedPreconditionError(
        "there is no cache: none of EVENTIDE_CACHE_DIR, XDG_CACHE_HOME and HOME is set");
  }
  return KernelCache(*folder);
}

std::string IdleText(double seconds) {
  if (seconds < 120) return absl::StrFormat("%.0f s", seconds);
  if (seconds < 7200) return absl::StrFormat("%.0f min", seconds / 60);
  return seconds < 172800 ? absl::StrFormat("%.0f h", seconds / 3600)
                          : absl::StrFormat("%.0f days", seconds / 86400);
}

absl::Status ListCache(const CacheFlags& flags) {
  std::string folder;
  ASSIGN_OR_RETURN(const KernelCache cache, OpenCache(&folder));
  ASSIGN_OR_RETURN(const std::vector<CacheItem> items, cache.List());
  int64_t bytes = 0;
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  std::string text;
  for (const CacheItem& item : items) {
    bytes += item.bytes;
    list.push_back({{"key", item.key},
                    {"bytes", item.bytes},
                    {"idle_seconds", item.idle_seconds},
                    {"damaged", item.damaged}});
    absl::StrAppendFormat(&text, "%s %9d bytes, used %s ago%s\n", item.key.substr(0, 16),
                          item.bytes, IdleText(item.idle_seconds),
                          item.damaged ? ", damaged: will be made again when it is needed" : "");
  }
  if (flags.json) {
    return PrintJson({{"folder", folder},
                      {"entries", list},
                      {"bytes", bytes},
                      {"max_bytes", KernelCache::kMaxBytes}});
  }
  absl::StrAppendFormat(&text, "%d kernels, %.1f of %d MiB in %s\n", items.size(),
                        static_cast<double>(bytes) / (1 << 20), KernelCache::kMaxBytes >> 20,
                        folder);
  return PrintText(text);
}

absl::Status ClearCache(const CacheFlags& flags) {
  std::string folder;
  ASSIGN_OR_RETURN(const KernelCache cache, OpenCache(&folder));
  ASSIGN_OR_RETURN(const int removed, cache.Clear());
  if (flags.json) return PrintJson({{"folder", folder}, {"removed", removed}});
  return PrintText(absl::StrFormat("%d files removed from %s\n", removed, folder));
}

}  // namespace

CommandBody AddCache(CLI::App* app) {
  auto flags = std::make_shared<CacheFlags>();
  app->require_subcommand(1);
  CLI::App* list = app->add_subcommand("list", "Its kernels, those used last first");
  CLI::App* clear = app->add_subcommand("clear", "Removes them all; running programs keep theirs");
  for (CLI::App* sub : {list, clear}) {
    sub->add_flag("--json", flags->json, "One JSON object on stdout instead of text");
  }
  app->footer(
      "The folder is $EVENTIDE_CACHE_DIR, else $XDG_CACHE_HOME/eventide, else ~/.cache/eventide.\n"
      "Examples:\n"
      "  eventide cache list\n"
      "  eventide cache clear");
  return [=] { return list->parsed() ? ListCache(*flags) : ClearCache(*flags); };
}

}  // namespace eventide
