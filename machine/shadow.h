// Who has read and written memory, and whether that was in an order that something ensures: a race is two accesses of
// one word, at least one a write, of which neither happens before the other by barriers, mbarriers, releases and
// acquires. Vector clocks as in FastTrack (Flanagan and Freund, PLDI 2009): a word keeps its last write and, unless they
// follow one another, one entry for each reader.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace eventide::machine {

// By agent: how much of what it did is known to have happened.
using Clock = std::vector<uint32_t>;

inline void Join(Clock& to, const Clock& from) {
  if (to.size() < from.size()) to.resize(from.size());
  for (size_t i = 0; i < from.size(); ++i) to[i] = to[i] < from[i] ? from[i] : to[i];
}

// What an access is in a race with: an earlier one of another agent.
struct Race {
  const char* kind = nullptr;  // "reads what was written by"; null: there is none
  uint32_t other = 0;
  const void* where = nullptr;
};

class Shadow {
 public:
  // The race that an access of `bytes` bytes by an agent is part of. `where` is the caller's name of its place.
  Race Read(uint64_t address, uint32_t bytes, uint32_t agent, const Clock& clock, const void* where);
  // Whether Read would find a race. Leaves no trace.
  bool Races(uint64_t address, uint32_t bytes, const Clock& clock);
  Race Write(uint64_t address, uint32_t bytes, uint32_t agent, const Clock& clock, const void* where);

 private:
  static constexpr uint64_t kWordBytes = 2, kPageWords = 256;  // bytes of one word count as one place
  struct Word {
    uint32_t writer = 0, written = 0;  // agent and its epoch; epochs start at 1
    uint32_t reader = 0, read = 0;
    struct Readers {
      Clock epochs;
      std::vector<const void*> at;
    };
    std::unique_ptr<Readers> readers;  // where several have read
    const void *wrote_at = nullptr, *read_at = nullptr;
  };
  Word& At(uint64_t word);
  std::unordered_map<uint64_t, std::unique_ptr<Word[]>> pages_;
  uint64_t last_page_ = ~uint64_t{0};
  Word* last_ = nullptr;
};

}  // namespace eventide::machine
