// A folder of compiled kernels, named by what they were made from. Safe under racing processes: one
// makes an entry while the others wait for it. A damaged entry is detected and made again. A folder
// that cannot be used (read-only, full) never fails a run: entries are then made and not kept.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/status.h"

namespace eventide {

struct CacheEntry {
  std::string payload;
  bool made = false;  // by this call, not taken from the folder
  std::string note;   // why it was not kept, or that a damaged one was replaced; usually empty
};

class KernelCache {
 public:
  // `folder` is made when it is needed.
  explicit KernelCache(std::string folder) : folder_(std::move(folder)) {}

  // $EVENTIDE_CACHE_DIR, else $XDG_CACHE_HOME/eventide, else ~/.cache/eventide; an empty name (no
  // caching) when none of these is set.
  static std::string DefaultFolder();

  // 64 hexadecimal digits that stand for these texts, in order.
  static std::string Key(const std::vector<std::string>& parts);

  // The entry of `key`, made by `make` when it is absent or damaged. The only errors are make's.
  absl::StatusOr<CacheEntry> GetOrMake(
      const std::string& key, const std::function<absl::StatusOr<std::string>()>& make) const;

  // Where an entry is, for tests and messages.
  std::string EntryPath(const std::string& key) const { return folder_ + "/" + key + ".cubin"; }

  // The folder is kept below this size: the entries that were used least recently go first.
  static constexpr int64_t kMaxBytes = int64_t{512} << 20;
  void Evict(int64_t max_bytes) const;

 private:
  std::string folder_;
};

}  // namespace eventide
