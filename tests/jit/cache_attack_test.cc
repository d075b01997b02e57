// The cubin cache under attack: whatever happens to its folder or to its users, what comes back is
// right, and racing processes compile once.
#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <random>
#include <thread>

#include "jit/cache.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test.h"

namespace eventide {
namespace {

namespace fs = std::filesystem;

std::string Payload(size_t bytes, int salt = 0) {
  std::string payload(bytes, 0);
  for (size_t i = 0; i < bytes; ++i)
    payload[i] = static_cast<char>(i * 31 + i / 251 + static_cast<size_t>(salt));
  return payload;
}

pid_t Fork(const std::function<int()>& body) {
  const pid_t pid = ::fork();
  REQUIRE(pid >= 0);
  if (pid == 0) ::_exit(body());
  return pid;
}

int Exit(pid_t pid) {
  int status = 0;
  REQUIRE(::waitpid(pid, &status, 0) == pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

void Append(const std::string& path) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
  if (file < 0 || ::write(file, "x", 1) != 1) ::_exit(3);
  ::close(file);
}

int Temporaries(const std::string& folder) {
  int count = 0;
  for (const auto& item : fs::directory_iterator(folder))
    count += item.path().extension() == ".tmp";
  return count;
}

TEST_CASE("sixteen cold processes make an entry once, from nothing and from a damaged one") {
  const std::string key = KernelCache::Key({"raced"});
  for (const bool damaged : {false, true}) {
    const TempFolder folder;
    const KernelCache cache(folder.path());
    const std::string log = folder / "made.log";
    if (damaged) {
      REQUIRE(cache.GetOrMake(key, [] { return absl::StatusOr<std::string>(Payload(9)); }).ok());
      WriteFile(cache.EntryPath(key), ReadFile(cache.EntryPath(key)).substr(1));
    }
    std::vector<pid_t> children;
    for (int i = 0; i < 16; ++i) {
      children.push_back(Fork([&] {
        const auto entry = cache.GetOrMake(key, [&]() -> absl::StatusOr<std::string> {
          Append(log);
          std::this_thread::sleep_for(std::chrono::milliseconds(300));  // a compiler takes its time
          return Payload(5000);
        });
        return entry.ok() && entry->payload == Payload(5000) ? 0 : 1;
      }));
    }
    for (const pid_t child : children) CHECK(Exit(child) == 0);
    CHECK(ReadFile(log) == "x");
  }
}

TEST_CASE("processes that are killed at random points leave nothing wrong, and no litter") {
  const TempFolder folder;
  const std::string key = KernelCache::Key({"killed"});
  std::mt19937 random(7);
  const std::string payload = Payload(400'000);
  int killed = 0, found = 0;
  for (int i = 0; i < 150; ++i) {
    const pid_t child = Fork([&] {
      const auto entry = KernelCache(folder.path()).GetOrMake(key, [&] {
        std::this_thread::sleep_for(std::chrono::microseconds(300));
        return absl::StatusOr<std::string>(payload);
      });
      return entry.ok() && entry->payload == payload ? (entry->made ? 0 : 1) : 2;
    });
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 4000));
    ::kill(child, SIGKILL);
    const int end = Exit(child);
    CHECK(end < 2);
    killed += end == -SIGKILL;
    found += end == 1;
    // Half of the time the next one has to make it again.
    if (i % 2 == 0) {
      std::error_code ignored;
      fs::remove(KernelCache(folder.path()).EntryPath(key), ignored);
    }
  }
  INFO(killed << " of 150 were killed, " << found << " found the entry");
  CHECK(killed > 20);
  const KernelCache cache(folder.path());
  std::error_code ignored;
  fs::remove(cache.EntryPath(key), ignored);
  const auto entry = cache.GetOrMake(key, [&] { return absl::StatusOr<std::string>(payload); });
  REQUIRE(entry.ok());
  CHECK(entry->payload == payload);
  CHECK(entry->note.empty());
  CHECK(Temporaries(folder.path()) == 0);
}

TEST_CASE("an entry under another one's name is not taken, and entries of other versions rest") {
  const TempFolder folder;
  const KernelCache cache(folder.path());
  const std::string one = KernelCache::Key({"abi 1", "source"}),
                    two = KernelCache::Key({"abi 2", "source"});
  const auto make = [&](int salt) {
    return [salt] { return absl::StatusOr<std::string>(Payload(3000, salt)); };
  };
  REQUIRE(cache.GetOrMake(one, make(1)).ok());
  fs::copy_file(cache.EntryPath(one), cache.EntryPath(two));
  const auto entry = cache.GetOrMake(two, make(2));
  REQUIRE(entry.ok());
  CHECK(entry->made);
  CHECK(entry->payload == Payload(3000, 2));
  CHECK(entry->note.find("damaged") != std::string::npos);
  const auto first = cache.GetOrMake(one, make(3));
  CHECK_FALSE(first->made);
  CHECK(first->payload == Payload(3000, 1));
}

TEST_CASE("random damage of any kind is detected, every time") {
  const TempFolder folder;
  const KernelCache cache(folder.path());
  const std::string key = KernelCache::Key({"damaged"});
  const std::string payload = Payload(2000);
  const auto make = [&] { return absl::StatusOr<std::string>(payload); };
  REQUIRE(cache.GetOrMake(key, make).ok());
  const std::string good = ReadFile(cache.EntryPath(key));
  std::mt19937 random(11);
  int made = 0;
  constexpr int kTries = 1500;
  for (int i = 0; i < kTries; ++i) {
    std::string bad = good;
    const size_t at = random() % good.size(), length = 1 + random() % 64;
    switch (random() % 5) {
      case 0:
        bad[at] = static_cast<char>(bad[at] ^ (1 << random() % 8));
        break;
      case 1:
        bad.resize(at);
        break;
      case 2:
        bad.erase(at, length);
        break;
      case 3:
        bad.insert(at, length, 'x');
        break;
      default:  // a torn page
        for (size_t k = at; k < good.size(); ++k) bad[k] = 0;
        break;
    }
    if (bad == good) bad += "x";
    WriteFile(cache.EntryPath(key), bad);
    const auto entry = cache.GetOrMake(key, make);
    made += entry.ok() && entry->made && entry->payload == payload;
  }
  CHECK(made == kTries);
}

TEST_CASE("a process that holds the lock for too long is not waited for") {
  const TempFolder folder;
  const std::string key = KernelCache::Key({"stopped"});
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  const pid_t holder = Fork([&] {
    static_cast<void>(
        KernelCache(folder.path()).GetOrMake(key, [&]() -> absl::StatusOr<std::string> {
          if (::write(ready[1], "x", 1) != 1) return absl::InternalError("pipe");
          ::pause();
          return std::string("never");
        }));
    return 0;
  });
  char byte = 0;
  REQUIRE(::read(ready[0], &byte, 1) == 1);
  const KernelCache cache(folder.path(), std::chrono::milliseconds(50));
  const auto entry = cache.GetOrMake(key, [] { return absl::StatusOr<std::string>("mine"); });
  REQUIRE(entry.ok());
  CHECK(entry->payload == "mine");
  CHECK(entry->note.find("too long") != std::string::npos);
  ::kill(holder, SIGKILL);
  CHECK(Exit(holder) == -SIGKILL);
  // Its death frees the lock.
  const auto kept = cache.GetOrMake(key, [] { return absl::StatusOr<std::string>("kept"); });
  REQUIRE(kept.ok());
  CHECK(kept->note.empty());
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_CASE("a disk that is really full gives a note and no partial entry") {
  const TempFolder folder;
  if (::mount("none", folder.path().c_str(), "tmpfs", 0, "size=64k") != 0) {
    return Skip("no small file system can be mounted here; RLIMIT_FSIZE stands in for it");
  }
  const KernelCache cache(folder.path());
  const auto entry = cache.GetOrMake(KernelCache::Key({"large"}),
                                     [] { return absl::StatusOr<std::string>(Payload(200'000)); });
  const int litter = Temporaries(folder.path());
  const auto small = cache.GetOrMake(KernelCache::Key({"small"}),
                                     [] { return absl::StatusOr<std::string>(Payload(1000)); });
  CHECK(::umount(folder.path().c_str()) == 0);
  REQUIRE(entry.ok());
  CHECK(entry->payload == Payload(200'000));
  CHECK(entry->note.find("cannot write") != std::string::npos);
  CHECK(litter == 0);
  REQUIRE(small.ok());
  CHECK(small->note.empty());
}

TEST_CASE("entries are listed with what is wrong with them, and cleared") {
  const TempFolder folder;
  const KernelCache cache(folder / "sub"), nothing(folder / "none");
  CHECK(nothing.List()->empty());
  CHECK(*nothing.Clear() == 0);
  std::vector<std::string> keys;
  for (int i = 0; i < 3; ++i) {
    keys.push_back(KernelCache::Key({std::to_string(i)}));
    REQUIRE(cache.GetOrMake(keys.back(), [&] { return absl::StatusOr<std::string>(Payload(1000)); })
                .ok());
    fs::last_write_time(cache.EntryPath(keys.back()),
                        fs::file_time_type::clock::now() - std::chrono::hours(i));
  }
  WriteFile(cache.EntryPath(keys[0]), "short");
  fs::last_write_time(cache.EntryPath(keys[0]), fs::file_time_type::clock::now());
  const auto items = cache.List();
  REQUIRE(items.ok());
  REQUIRE(items->size() == 3);
  for (size_t i = 0; i < 3; ++i) {
    CHECK((*items)[i].key == keys[i]);
    CHECK((*items)[i].damaged == (i == 0));
  }
  CHECK((*items)[2].idle_seconds > 7000);
  CHECK((*items)[1].bytes == 1040);
  CHECK(*cache.Clear() == 3);
  CHECK(cache.List()->empty());
  WriteFile(folder / "file", "x");
  CHECK_FALSE(KernelCache(folder / "file").List().ok());
}

}  // namespace
}  // namespace eventide
