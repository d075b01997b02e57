#include "jit/cache.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>

#include "jit/sha256.h"
#include "tests/support/test.h"

namespace eventide {
namespace {

namespace fs = std::filesystem;

// A folder of its own that goes away with the test.
class TestFolder {
 public:
  TestFolder() {
    std::string name = (fs::temp_directory_path() / "eventide-cache-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~TestFolder() { fs::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream bytes;
  bytes << in.rdbuf();
  return bytes.str();
}

void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

std::string Payload() {
  std::string payload;
  for (int i = 0; i < 3000; ++i) payload += static_cast<char>(i * 7 + i / 256);
  return payload;
}

TEST_CASE("the hash is SHA-256") {
  // FIPS 180-4, examples.
  CHECK(ToHex(Sha256::Of("")) ==
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(ToHex(Sha256::Of("abc")) ==
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(ToHex(Sha256::Of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")) ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(ToHex(Sha256::Of(std::string(1000000, 'a'))) ==
        "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  // In pieces of every size the digest is the same.
  const std::string text = Payload().substr(0, 300);
  for (size_t size = 1; size < 140; ++size) {
    Sha256 hash;
    for (size_t at = 0; at < text.size(); at += size) hash.Update(text.substr(at, size));
    CHECK(hash.Finish() == Sha256::Of(text));
  }
}

TEST_CASE("keys differ when any part does, and when parts are cut differently") {
  CHECK(KernelCache::Key({"ab", "c"}) != KernelCache::Key({"a", "bc"}));
  CHECK(KernelCache::Key({"ab"}) != KernelCache::Key({"ab", ""}));
  CHECK(KernelCache::Key({"ab", "c"}) == KernelCache::Key({"ab", "c"}));
  CHECK(KernelCache::Key({}).size() == 64);
}

TEST_CASE("an entry is made once and found afterwards, also by a new object") {
  const TestFolder folder;
  int made = 0;
  const auto make = [&]() -> absl::StatusOr<std::string> {
    ++made;
    return Payload();
  };
  for (int i = 0; i < 3; ++i) {
    const KernelCache cache(folder.path() + "/not/there/yet");
    const absl::StatusOr<CacheEntry> entry = cache.GetOrMake(KernelCache::Key({"x"}), make);
    REQUIRE(entry.ok());
    CHECK(entry->payload == Payload());
    CHECK(entry->made == (i == 0));
    CHECK(entry->note.empty());
  }
  CHECK(made == 1);
}

TEST_CASE("a failing maker's error comes back and leaves nothing behind") {
  const TestFolder folder;
  const KernelCache cache(folder.path());
  const std::string key = KernelCache::Key({"x"});
  const auto fail = [&]() -> absl::StatusOr<std::string> { return absl::InternalError("no luck"); };
  CHECK(cache.GetOrMake(key, fail).status().message() == "no luck");
  CHECK_FALSE(fs::exists(cache.EntryPath(key)));
  CHECK(cache.GetOrMake(key, [] { return absl::StatusOr<std::string>("fine"); })->payload ==
        "fine");
}

TEST_CASE("any flipped bit and any truncation is noticed and repaired") {
  const TestFolder folder;
  const KernelCache cache(folder.path());
  const std::string key = KernelCache::Key({"x"});
  const auto make = [] { return absl::StatusOr<std::string>(Payload().substr(0, 200)); };
  REQUIRE(cache.GetOrMake(key, make).ok());
  const std::string good = ReadFile(cache.EntryPath(key));
  int repaired = 0, expected = 0;
  const auto damage = [&](const std::string& bytes) {
    WriteFile(cache.EntryPath(key), bytes);
    const absl::StatusOr<CacheEntry> entry = cache.GetOrMake(key, make);
    REQUIRE(entry.ok());
    ++expected;
    repaired += entry->made && entry->payload == Payload().substr(0, 200) &&
                entry->note.find("damaged") != std::string::npos &&
                ReadFile(cache.EntryPath(key)) == good;
  };
  for (size_t bit = 0; bit < good.size() * 8; bit += 5) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    damage(bad);
  }
  for (size_t size = 0; size < good.size(); size += 7) damage(good.substr(0, size));
  damage(good + "x");
  CHECK(repaired == expected);
}

TEST_CASE("of eight racing processes one makes the entry and all get it") {
  const TestFolder folder;
  const std::string key = KernelCache::Key({"raced"});
  const std::string log = folder.path() + "/made.log";
  const auto child = [&]() {
    const KernelCache cache(folder.path() + "/cache");
    const absl::StatusOr<CacheEntry> entry =
        cache.GetOrMake(key, [&]() -> absl::StatusOr<std::string> {
          const int file = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
          if (::write(file, "x", 1) != 1) return absl::InternalError("cannot log");
          ::close(file);
          std::this_thread::sleep_for(std::chrono::milliseconds(200));  // a compiler takes its time
          return Payload();
        });
    return entry.ok() && entry->payload == Payload() && entry->note.empty() ? 0 : 1;
  };
  std::vector<pid_t> children;
  for (int i = 0; i < 8; ++i) {
    const pid_t pid = ::fork();
    REQUIRE(pid >= 0);
    if (pid == 0) ::_exit(child());
    children.push_back(pid);
  }
  for (const pid_t pid : children) {
    int status = -1;
    REQUIRE(::waitpid(pid, &status, 0) == pid);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
  }
  CHECK(ReadFile(log) == "x");
}

TEST_CASE("a process that dies while making an entry blocks nobody") {
  const TestFolder folder;
  const std::string key = KernelCache::Key({"dying"});
  const pid_t pid = ::fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    const KernelCache cache(folder.path());
    static_cast<void>(cache.GetOrMake(key, []() -> absl::StatusOr<std::string> { ::_exit(9); }));
    ::_exit(1);
  }
  int status = 0;
  REQUIRE(::waitpid(pid, &status, 0) == pid);
  CHECK(WEXITSTATUS(status) == 9);
  const KernelCache cache(folder.path());
  const absl::StatusOr<CacheEntry> entry =
      cache.GetOrMake(key, [] { return absl::StatusOr<std::string>(Payload()); });
  REQUIRE(entry.ok());
  CHECK(entry->made);
}

TEST_CASE("a folder that cannot be written works uncached and says why") {
  const TestFolder folder;
  const auto make = [] { return absl::StatusOr<std::string>(Payload()); };
  const std::string key = KernelCache::Key({"x"});
  // Below a file no folder can be made; in /proc no file can; an empty name means no folder at all.
  WriteFile(folder.path() + "/file", "x");
  for (const std::string& name :
       {folder.path() + "/file/cache", std::string("/proc"), std::string()}) {
    for (int i = 0; i < 2; ++i) {
      const absl::StatusOr<CacheEntry> entry = KernelCache(name).GetOrMake(key, make);
      REQUIRE(entry.ok());
      CHECK(entry->payload == Payload());
      CHECK(entry->made);
      CHECK_FALSE(entry->note.empty());
    }
  }
}

TEST_CASE("a full disk works uncached and leaves no partial entry") {
  const TestFolder folder;
  const std::string key = KernelCache::Key({"x"});
  const pid_t pid = ::fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {1000, 1000};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) ::_exit(2);
    const absl::StatusOr<CacheEntry> entry = KernelCache(folder.path()).GetOrMake(key, [] {
      return absl::StatusOr<std::string>(Payload());
    });
    const bool good =
        entry.ok() && entry->payload == Payload() && entry->made && !entry->note.empty();
    ::_exit(good ? 0 : 1);
  }
  int status = -1;
  REQUIRE(::waitpid(pid, &status, 0) == pid);
  CHECK(WEXITSTATUS(status) == 0);
  for (const auto& item : fs::directory_iterator(folder.path())) {
    CHECK(item.path().filename().string().rfind("lock-", 0) == 0);
  }
}

TEST_CASE("the least recently used entries go first when the folder grows too large") {
  const TestFolder folder;
  const KernelCache cache(folder.path());
  const auto make = [] { return absl::StatusOr<std::string>(Payload()); };
  std::vector<std::string> keys;
  for (int i = 0; i < 5; ++i) {
    keys.push_back(KernelCache::Key({std::to_string(i)}));
    REQUIRE(cache.GetOrMake(keys.back(), make).ok());
    fs::last_write_time(cache.EntryPath(keys.back()),
                        fs::file_time_type::clock::now() - std::chrono::hours(10 - i));
  }
  REQUIRE(cache.GetOrMake(keys[0], make).ok());  // used: now the newest
  cache.Evict(2 * (3000 + 40));
  CHECK(fs::exists(cache.EntryPath(keys[0])));
  CHECK(fs::exists(cache.EntryPath(keys[4])));
  for (int i = 1; i < 4; ++i) CHECK_FALSE(fs::exists(cache.EntryPath(keys[i])));
}

}  // namespace
}  // namespace eventide
