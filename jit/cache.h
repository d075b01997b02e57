// A folder of compiled kernels, named by what they were made from. Safe under racing processes: one
// makes an entry while the others wait for it, for a while. An entry that is damaged, or is another
// one's under this one's name, is detected and made again. A folder that cannot be used (read-only,
// full) never fails a run: entries are then made and not kept.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "core/status.h"

namespace eventide {

struct CacheEntry {
  std::string payload;
  bool made = false;  // by this call, not taken from the folder
  bool kept = true;   // the folder has it now
  std::string note;   // why it was not kept, or that a damaged one was replaced; usually empty
};

// What `eventide cache list` shows of an entry.
struct CacheItem {
  std::string key;
  int64_t bytes = 0;
  double idle_seconds = 0;  // since it was last used
  bool damaged = false;
};

class KernelCache {
 public:
  // How long a process waits for another one that makes the same entry; then it makes its own.
  static constexpr std::chrono::milliseconds kPatience{120'000};

  // `folder` is made when it is needed.
  explicit KernelCache(std::string folder, std::chrono::milliseconds patience = kPatience)
      : folder_(std::move(folder)), patience_(patience) {}

  // $EVENTIDE_CACHE_DIR, else $XDG_CACHE_HOME/eventide, else ~/.cache/eventide; an empty name (no
  // caching) when none of these is set.
  static std::string DefaultFolder();

  // 64 hexadecimal digits that stand for these texts, in order.
  static std::string Key(const std::vector<std::string>& parts);

  // The entry of `key`, made by `make` when it is absent or damaged. The only errors are make's.
  absl::StatusOr<CacheEntry> GetOrMake(
      const std::string& key, const std::function<absl::StatusOr<std::string>()>& make) const;

  // Whether entries can be kept: the folder is made, and a file in it and away again. Else the reason.
  absl::Status CheckWritable() const;

  // All entries, those used last first. A folder that is not there is empty.
  absl::StatusOr<std::vector<CacheItem>> List() const;
  // Removes all entries and what dying processes left: how many files. Whoever runs a kernel has
  // loaded it and does not notice; who is about to make one makes it anew.
  absl::StatusOr<int> Clear() const;

  // Where an entry is, for tests and messages.
  std::string EntryPath(const std::string& key) const { return folder_ + "/" + key + ".cubin"; }

  // The folder is kept below this size: the entries that were used least recently go first.
  static constexpr int64_t kMaxBytes = int64_t{512} << 20;
  void Evict(int64_t max_bytes) const;

 private:
  std::string folder_;
  std::chrono::milliseconds patience_;
};

}  // namespace eventide
