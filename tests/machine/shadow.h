// Who has read and written memory, and whether that was in an order that something ensures: a race is two accesses of
// one word, at least one a write, of which neither happens before the other by barriers, mbarriers, releases and
// acquires. Vector clocks as in FastTrack (Flanagan and Freund, PLDI 2009): a word keeps its last write and, unless they
// follow one another, one entry for each reader.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace eventide::machine {

// By agent: how much of what it did is known to have happened.
using Clock = std::vector<uint32_t>;

inline void Join(Clock& to, const Clock& from) {
  if (to.size() < from.size()) to.resize(from.size());
  for (size_t i = 0; i < from.size(); ++i) to[i] = to[i] < from[i] ? from[i] : to[i];
}

class Shadow {
 public:
  // Empty, or the race that an access of `bytes` bytes by an agent is part of. `line` is the instruction's.
  std::string Read(uint64_t address, uint32_t bytes, uint32_t agent, const Clock& clock, int line);
  std::string Write(uint64_t address, uint32_t bytes, uint32_t agent, const Clock& clock, int line);

 private:
  static constexpr uint64_t kWordBytes = 4, kPageWords = 256;
  struct Word {
    uint32_t writer = 0, written = 0;  // agent and its epoch; epochs start at 1
    uint32_t reader = 0, read = 0;
    std::unique_ptr<Clock> readers;    // where several have read
    int write_line = 0, read_line = 0;
  };
  Word& At(uint64_t word);

  std::unordered_map<uint64_t, std::unique_ptr<Word[]>> pages_;
  uint64_t last_page_ = ~uint64_t{0};
  Word* last_ = nullptr;
};

}  // namespace eventide::machine
