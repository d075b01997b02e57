#include "jit/cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "absl/strings/match.h"
#include "jit/sha256.h"

namespace eventide {
namespace {

namespace fs = std::filesystem;

// Behind the payload: this word, then SHA-256 of the key and the payload. Rewriting half a file, or
// any bit of it, shows, and so does a file that was given another one's name.
constexpr absl::string_view kTrailerWord = "EVTCUBN2";
constexpr size_t kTrailerBytes = 8 + 32;
constexpr const char* kEntryEnd = ".cubin";
constexpr const char* kTemporaryEnd = ".tmp";

std::string Trailer(absl::string_view key, absl::string_view payload) {
  Sha256 hash;
  hash.UpdateField(key);
  hash.UpdateField(payload);
  const std::array<uint8_t, 32> digest = hash.Finish();
  std::string trailer(kTrailerWord);
  trailer.append(reinterpret_cast<const char*>(digest.data()), digest.size());
  return trailer;
}

enum class Found { kNo, kDamaged, kYes };

Found ReadEntry(const std::string& path, const std::string& key, std::string& payload) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return Found::kNo;
  std::ostringstream bytes;
  bytes << in.rdbuf();
  payload = bytes.str();
  if (payload.size() < kTrailerBytes) return Found::kDamaged;
  const std::string trailer = payload.substr(payload.size() - kTrailerBytes);
  payload.resize(payload.size() - kTrailerBytes);
  return trailer == Trailer(key, payload) ? Found::kYes : Found::kDamaged;
}

// As used now: what eviction goes by. Failing on a read-only folder is fine.
void Touch(const std::string& path) {
  utimensat(AT_FDCWD, path.c_str(), nullptr, 0);
}

bool WriteAll(int file, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

// Empty on success, otherwise why not. Readers see the old entry or the new one, never a part.
std::string WriteEntry(const std::string& path, const std::string& key,
                       const std::string& payload) {
  static std::atomic<int> serial = 0;
  const std::string temporary = absl::StrCat(path, ".", ::getpid(), ".", serial++, kTemporaryEnd);
  const int file = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (file < 0) return absl::StrCat("cannot create ", temporary, ": ", std::strerror(errno));
  bool ok = WriteAll(file, payload) && WriteAll(file, Trailer(key, payload)) && ::fsync(file) == 0;
  int error = errno;
  if (::close(file) != 0 && ok) {
    ok = false;
    error = errno;
  }
  if (ok && ::rename(temporary.c_str(), path.c_str()) != 0) {
    ok = false;
    error = errno;
  }
  if (ok) return "";
  ::unlink(temporary.c_str());
  return absl::StrCat("cannot write ", path, ": ", std::strerror(error));
}

// A lock that the operating system takes back when its process dies. The file stays: deleting it
// would let a third process lock another one of the same name. Waiting ends after `patience`:
// whoever holds it may be stopped in a debugger.
class FileLock {
 public:
  FileLock(const std::string& path, std::chrono::milliseconds patience) {
    file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (file_ < 0) {
      note_ = absl::StrCat("cannot open ", path, ": ", std::strerror(errno));
      return;
    }
    const auto start = std::chrono::steady_clock::now();
    while (::flock(file_, LOCK_EX | LOCK_NB) != 0) {
      if (errno == EINTR) continue;
      if (errno != EWOULDBLOCK) {
        note_ = absl::StrCat("cannot lock ", path, ": ", std::strerror(errno));
        return;
      }
      if (std::chrono::steady_clock::now() - start >= patience) {
        note_ = absl::StrCat("another process has held ", path, " for too long");
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  FileLock(const FileLock&) = delete;
  ~FileLock() {
    if (file_ >= 0) ::close(file_);
  }
  const std::string& note() const { return note_; }

 private:
  int file_ = -1;
  std::string note_;
};

// What processes that died while they wrote this entry left: nobody else writes it while we hold
// its lock.
void RemoveOrphans(const std::string& folder, const std::string& key) {
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!absl::StartsWith(name, key) || !absl::EndsWith(name, kTemporaryEnd)) continue;
    std::error_code ignored;
    fs::remove(it->path(), ignored);
  }
}

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

std::string KernelCache::DefaultFolder() {
  if (std::string folder = Environment("EVENTIDE_CACHE_DIR"); !folder.empty()) return folder;
  if (const std::string xdg = Environment("XDG_CACHE_HOME"); !xdg.empty()) return xdg + "/eventide";
  if (const std::string home = Environment("HOME"); !home.empty()) return home + "/.cache/eventide";
  return "";
}

std::string KernelCache::Key(const std::vector<std::string>& parts) {
  Sha256 hash;
  for (const std::string& part : parts) hash.UpdateField(part);
  return ToHex(hash.Finish());
}

absl::StatusOr<CacheEntry> KernelCache::GetOrMake(
    const std::string& key, const std::function<absl::StatusOr<std::string>()>& make) const {
  CacheEntry entry;
  const std::string path = EntryPath(key);
  if (!folder_.empty() && ReadEntry(path, key, entry.payload) == Found::kYes) {
    Touch(path);
    return entry;
  }

  if (folder_.empty()) {
    entry.note = "kernels are not cached: set EVENTIDE_CACHE_DIR to a folder for them";
  } else {
    std::error_code error;
    fs::create_directories(folder_, error);
    if (error) entry.note = absl::StrCat("cannot create ", folder_, ": ", error.message());
  }
  entry.made = true;
  if (!entry.note.empty()) {
    ASSIGN_OR_RETURN(entry.payload, make());
    entry.kept = false;
    return entry;
  }
  // Whoever holds the lock makes the entry; the others find it when they get here.
  const FileLock lock(folder_ + "/lock-" + key.substr(0, 2), patience_);
  const Found found = ReadEntry(path, key, entry.payload);
  if (found == Found::kYes) {
    Touch(path);
    entry.made = false;
    return entry;
  }
  if (found == Found::kDamaged) entry.note = absl::StrCat("replaced a damaged entry: ", path);
  ASSIGN_OR_RETURN(entry.payload, make());
  if (lock.note().empty()) RemoveOrphans(folder_, key);
  const std::string problem =
      !lock.note().empty() ? lock.note() : WriteEntry(path, key, entry.payload);
  if (!problem.empty()) {
    entry.note = problem;
    entry.kept = false;
  } else {
    Evict(kMaxBytes);
  }
  return entry;
}

absl::Status KernelCache::CheckWritable() const {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) return absl::UnavailableError(absl::StrCat("cannot create ", folder_, ": ", error.message()));
  const std::string probe = absl::StrCat(folder_, "/probe.", ::getpid(), kTemporaryEnd);
  const int file = ::open(probe.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (file < 0) return absl::UnavailableError(absl::StrCat("cannot create ", probe, ": ", std::strerror(errno)));
  ::close(file);
  ::unlink(probe.c_str());
  return absl::OkStatus();
}

absl::StatusOr<std::vector<CacheItem>> KernelCache::List() const {
  std::vector<CacheItem> items;
  std::error_code error;
  fs::directory_iterator it(folder_, error);
  if (error == std::errc::no_such_file_or_directory) return items;
  for (const fs::directory_iterator end; !error && it != end; it.increment(error)) {
    if (it->path().extension() != kEntryEnd) continue;
    CacheItem item;
    item.key = it->path().stem().string();
    std::error_code gone;  // evicted meanwhile
    item.bytes = static_cast<int64_t>(it->file_size(gone));
    const auto idle = fs::file_time_type::clock::now() - it->last_write_time(gone);
    if (gone) continue;
    item.idle_seconds = std::chrono::duration<double>(idle).count();
    std::string payload;
    item.damaged = ReadEntry(it->path().string(), item.key, payload) == Found::kDamaged;
    items.push_back(std::move(item));
  }
  if (error) {
    return absl::UnavailableError(absl::StrCat("cannot list ", folder_, ": ", error.message()));
  }
  std::sort(items.begin(), items.end(),
            [](const CacheItem& a, const CacheItem& b) { return a.idle_seconds < b.idle_seconds; });
  return items;
}

absl::StatusOr<int> KernelCache::Clear() const {
  int removed = 0;
  std::error_code error;
  fs::directory_iterator it(folder_, error);
  if (error == std::errc::no_such_file_or_directory) return removed;
  for (const fs::directory_iterator end; !error && it != end; it.increment(error)) {
    // Locks stay: see FileLock.
    const std::string extension = it->path().extension();
    if (extension != kEntryEnd && extension != kTemporaryEnd) continue;
    std::error_code failed;
    removed += fs::remove(it->path(), failed);
    if (failed) {
      return absl::UnavailableError(
          absl::StrCat("cannot remove ", it->path().string(), ": ", failed.message()));
    }
  }
  if (error) {
    return absl::UnavailableError(absl::StrCat("cannot list ", folder_, ": ", error.message()));
  }
  return removed;
}

void KernelCache::Evict(int64_t max_bytes) const {
  struct Item {
    fs::file_time_type used;
    int64_t bytes;
    fs::path path;
  };
  std::vector<Item> items;
  int64_t total = 0;
  std::error_code error;
  for (fs::directory_iterator it(folder_, error), end; !error && it != end; it.increment(error)) {
    const std::string extension = it->path().extension();
    if (extension != kEntryEnd && extension != kTemporaryEnd) continue;
    std::error_code ignored;
    const Item item{it->last_write_time(ignored), static_cast<int64_t>(it->file_size(ignored)),
                    it->path()};
    if (ignored) continue;
    // Left behind by a process that died while writing.
    const auto age = fs::file_time_type::clock::now() - item.used;
    if (extension == kTemporaryEnd && age > std::chrono::hours(1)) {
      fs::remove(item.path, ignored);
      continue;
    }
    if (extension == kTemporaryEnd) continue;
    total += item.bytes;
    items.push_back(item);
  }
  std::sort(items.begin(), items.end(),
            [](const Item& a, const Item& b) { return a.used < b.used; });
  // The newest entry stays whatever its size: it is the one in use.
  for (size_t i = 0; i + 1 < items.size() && total > max_bytes; ++i) {
    std::error_code ignored;
    if (fs::remove(items[i].path, ignored)) total -= items[i].bytes;
  }
}

}  // namespace eventide
