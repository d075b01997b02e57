// All interleavings of a small pool: two lanes that ask in order, a consumer that returns in order,
// every atomic access a step of its own.
#include <set>
#include <tuple>
#include <vector>

#include "device/atomic.h"
#include "device/pages.h"
#include "tests/support/test.h"

namespace eventide {
namespace {

// A lane has `demand[k]` pages to take for task k. The consumer takes task k's pages from both
// lanes in turn, holding at most the floor of each, and returns them. A lane's producer is at
// `asked` pages, the consumer has returned `returned`.
struct State {
  u64 word;
  int asked[kLanes];
  int returned[kLanes];
  // A lane's grant under way: the word it has read, or nothing.
  bool reading[kLanes];
  u64 seen[kLanes];
  u32 held_pages[kLanes][32];

  // Which pages are held is left out: pages are alike, only their number matters.
  auto Key() const {
    return std::make_tuple(word, asked[0], asked[1], returned[0], returned[1], reading[0],
                           reading[1], reading[0] ? seen[0] : 0, reading[1] ? seen[1] : 0);
  }
};

// The pool's compare-and-swap, cut in two: the decision from a word read earlier, and the exchange.
struct StepSync {
  static inline u64 load_value = 0;
  static inline bool swap_fails = false;
  static u64 LocalLoad(const u64*) { return load_value; }
  static bool LocalCompareAndSwap(u64* p, u64 expected, u64 desired) {
    if (*p != expected) {
      swap_fails = true;
      load_value = 0;  // no free page: TryGrant's next turn gives up
      return false;
    }
    *p = desired;
    return true;
  }
  static u64 LocalFetchAdd(u64* p, u64 v) {
    const u64 old = *p;
    *p = old + v;
    return old;
  }
};

struct Explorer {
  int pages;
  u32 floor[kLanes];
  int demand[kLanes];  // pages of one task
  int tasks;
  std::set<decltype(State{}.Key())> seen;
  int64_t deadlocks = 0, finished = 0;

  PagePool<StepSync> Pool(const State& s) const {
    PagePool<StepSync> pool;
    pool.word = s.word;
    pool.floor[0] = floor[0];
    pool.floor[1] = floor[1];
    return pool;
  }

  // Whether the consumer can take the next page of the lane: within a task it needs them
  // alternately.
  bool CanReturn(const State& s, int lane) const {
    if (s.asked[lane] == s.returned[lane]) return false;
    const int task = s.returned[lane] / demand[lane], other = 1 - lane;
    // The other lane's pages of earlier tasks go first, and in this task both must have one to go
    // on, unless the other's are all done.
    if (s.returned[other] < task * demand[other]) return false;
    return s.returned[other] >= (task + 1) * demand[other] || s.asked[other] > s.returned[other];
  }

  void Explore(State s) {
    std::vector<State> stack = {s};
    while (!stack.empty()) {
      s = stack.back();
      stack.pop_back();
      if (!seen.insert(s.Key()).second) continue;
      bool moved = false, done = true;
      for (int lane = 0; lane < kLanes; ++lane) {
        done = done && s.returned[lane] == tasks * demand[lane];
        if (s.asked[lane] < tasks * demand[lane]) {
          State next = s;
          if (!s.reading[lane]) {
            next.reading[lane] = true;
            next.seen[lane] = s.word;
            // Reading the same word again and being refused again is no move.
            PagePool<StepSync> pool = Pool(s);
            StepSync::load_value = s.word;
            if (pool.TryGrant(static_cast<u32>(lane)) >= 0) {
              moved = true;
              stack.push_back(next);
            }
          } else {
            next.reading[lane] = false;
            PagePool<StepSync> pool = Pool(s);
            StepSync::load_value = s.seen[lane];
            StepSync::swap_fails = false;
            const i32 page = pool.TryGrant(static_cast<u32>(lane));
            if (page >= 0) {
              CHECK((s.word >> page & 1) == 1);
              next.word = pool.word;
              next.held_pages[lane][s.asked[lane] % 32] = static_cast<u32>(page);
              ++next.asked[lane];
            }
            moved = true;
            stack.push_back(next);
          }
        }
        if (CanReturn(s, lane)) {
          State next = s;
          PagePool<StepSync> pool = Pool(s);
          pool.Return(static_cast<u32>(lane),
                      static_cast<i32>(s.held_pages[lane][s.returned[lane] % 32]));
          next.word = pool.word;
          ++next.returned[lane];
          moved = true;
          stack.push_back(next);
        }
      }
      if (done) {
        ++finished;
        CHECK(CountBits(PageWord::Free(s.word)) == pages);
      } else if (!moved) {
        ++deadlocks;
      }
    }
  }
};

int64_t Deadlocks(int pages, u32 floor0, u32 floor1, int demand0, int demand1, int64_t* finished) {
  Explorer explorer{pages, {floor0, floor1}, {demand0, demand1}, 3, {}, 0, 0};
  State s = {};
  PagePool<StepSync> pool;
  pool.Reset(static_cast<u32>(pages), floor0, floor1);
  s.word = pool.word;
  explorer.Explore(s);
  *finished = explorer.finished;
  return explorer.deadlocks;
}

TEST_CASE("no interleaving of two lanes with floors deadlocks, whatever the demands") {
  for (const int pages : {2, 3, 4}) {
    for (const int demand0 : {1, 2, 5}) {
      for (const int demand1 : {1, 2, 4}) {
        int64_t finished = 0;
        CHECK(Deadlocks(pages, 1, 1, demand0, demand1, &finished) == 0);
        CHECK(finished > 0);
      }
    }
  }
}

TEST_CASE("without floors one lane's run-ahead deadlocks in some interleaving") {
  int64_t finished = 0;
  CHECK(Deadlocks(2, 0, 0, 2, 2, &finished) > 0);
  CHECK(Deadlocks(4, 0, 0, 5, 1, &finished) > 0);
}

TEST_CASE("bit tricks of the page pool agree with loops") {
  for (u32 v : {0u, 1u, 2u, 0x80000000u, 0xffffffffu, 0x10f0u, 0xdeadbeefu}) {
    i32 count = 0, lowest = -1;
    for (int bit = 31; bit >= 0; --bit) {
      if ((v >> bit & 1) == 0) continue;
      ++count;
      lowest = bit;
    }
    CHECK(CountBits(v) == count);
    if (v != 0) CHECK(LowestBit(v) == lowest);
  }
}

}  // namespace
}  // namespace eventide
