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

#include "jit/sha256.h"

namespace eventide {
namespace {

namespace fs = std::filesystem;

// Behind the payload: this word, then SHA-256 of the payload. Rewriting half a file, or any bit of
// it, shows.
constexpr absl::string_view kTrailerWord = "EVTCUBN1";
constexpr size_t kTrailerBytes = 8 + 32;

std::string Trailer(absl::string_view payload) {
  const std::array<uint8_t, 32> digest = Sha256::Of(payload);
  std::string trailer(kTrailerWord);
  trailer.append(reinterpret_cast<const char*>(digest.data()), digest.size());
  return trailer;
}

enum class Found { kNo, kDamaged, kYes };

Found ReadEntry(const std::string& path, std::string& payload) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return Found::kNo;
  std::ostringstream bytes;
  bytes << in.rdbuf();
  payload = bytes.str();
  if (payload.size() < kTrailerBytes) return Found::kDamaged;
  const std::string trailer = payload.substr(payload.size() - kTrailerBytes);
  payload.resize(payload.size() - kTrailerBytes);
  if (trailer != Trailer(payload)) return Found::kDamaged;
  // Used now: what eviction goes by. Failing on a read-only folder is fine.
  utimensat(AT_FDCWD, path.c_str(), nullptr, 0);
  return Found::kYes;
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
std::string WriteEntry(const std::string& path, const std::string& payload) {
  static std::atomic<int> serial = 0;
  const std::string temporary = absl::StrCat(path, ".", ::getpid(), ".", serial++, ".tmp");
  const int file = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (file < 0) return absl::StrCat("cannot create ", temporary, ": ", std::strerror(errno));
  bool ok = WriteAll(file, payload) && WriteAll(file, Trailer(payload)) && ::fsync(file) == 0;
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

// A lock that the kernel takes back when its process dies. The file stays: deleting it would let a
// third process lock another one of the same name.
class FileLock {
 public:
  explicit FileLock(const std::string& path) {
    file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (file_ < 0) {
      note_ = absl::StrCat("cannot open ", path, ": ", std::strerror(errno));
      return;
    }
    while (::flock(file_, LOCK_EX) != 0) {
      if (errno == EINTR) continue;
      note_ = absl::StrCat("cannot lock ", path, ": ", std::strerror(errno));
      return;
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
  if (!folder_.empty() && ReadEntry(path, entry.payload) == Found::kYes) return entry;

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
    return entry;
  }
  // Whoever holds the lock makes the entry; the others find it when they get here.
  const FileLock lock(folder_ + "/lock-" + key.substr(0, 2));
  const Found found = ReadEntry(path, entry.payload);
  if (found == Found::kYes) {
    entry.made = false;
    return entry;
  }
  if (found == Found::kDamaged) entry.note = absl::StrCat("replaced a damaged entry: ", path);
  ASSIGN_OR_RETURN(entry.payload, make());
  const std::string problem = !lock.note().empty() ? lock.note() : WriteEntry(path, entry.payload);
  if (!problem.empty()) {
    entry.note = problem;
  } else {
    Evict(kMaxBytes);
  }
  return entry;
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
    if (extension != ".cubin" && extension != ".tmp") continue;
    std::error_code ignored;
    const Item item{it->last_write_time(ignored), static_cast<int64_t>(it->file_size(ignored)),
                    it->path()};
    if (ignored) continue;
    // Left behind by a process that died while writing.
    const auto age = fs::file_time_type::clock::now() - item.used;
    if (extension == ".tmp" && age > std::chrono::hours(1)) {
      fs::remove(item.path, ignored);
      continue;
    }
    if (extension == ".tmp") continue;
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
