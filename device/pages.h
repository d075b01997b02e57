// The page allocator of one worker: a pool of up to 32 pages of 16 KiB shared by two lanes (weights and
// activations), granted and returned at run time through one 64-bit word.
//
// Why allocation cannot deadlock (docs/design.md, pages):
//  * Each lane asks strictly in (task, chunk) order and its pages are consumed in that order.
//  * A lane always gets pages up to its floor: the other lane may borrow beyond its own floor only while
//    enough free pages remain for this one.
//  * The floors are at least what one task needs to make progress (Verify checks them against the pool).
// So the oldest unfinished task finds its pages granted or grantable, whatever run-ahead holds.
#pragma once

#include "device/base.h"

namespace eventide {

inline constexpr int kMaxPages = 32;

// Word layout: bits 0..31 free pages; 32..39 and 40..47 pages held by lane 0 and 1.
struct PageWord {
  static EVT_FN u32 Free(u64 word) { return static_cast<u32>(word); }
  static EVT_FN u32 Held(u64 word, u32 lane) {
    return static_cast<u32>(word >> (32 + 8 * lane)) & 0xffu;
  }
  static EVT_FN u64 One(u32 lane) { return u64{1} << (32 + 8 * lane); }
};

EVT_FN i32 LowestBit(u32 v) { return CountBits((v & (0u - v)) - 1u); }

template <class Sync>
struct PagePool {
  u64 word;
  u32 floor[kLanes];

  // Before any lane runs. The floors' sum is at most `pages`.
  EVT_FN void Reset(u32 pages, u32 stream_floor, u32 input_floor) {
    word = pages >= 32 ? 0xffffffffull : ((u64{1} << pages) - 1);
    floor[kLaneStream] = stream_floor;
    floor[kLaneInput] = input_floor;
  }

  // A page for the lane, or -1 when none may be granted now. Called by the lane's own role only, in
  // order; the two lanes race on the word.
  EVT_FN i32 TryGrant(u32 lane) {
    const u32 other = 1 - lane;
    for (;;) {
      const u64 seen = Sync::LocalLoad(&word);
      const i32 free = CountBits(PageWord::Free(seen));
      if (free == 0) return -1;
      const i32 held_other = static_cast<i32>(PageWord::Held(seen, other));
      const i32 owed = Max(0, static_cast<i32>(floor[other]) - held_other);
      if (PageWord::Held(seen, lane) >= floor[lane] && free <= owed) return -1;
      const i32 page = LowestBit(PageWord::Free(seen));
      const u64 wanted = (seen & ~(u64{1} << page)) + PageWord::One(lane);
      if (Sync::LocalCompareAndSwap(&word, seen, wanted)) return page;
    }
  }

  // Gives a page back: sets its bit and lowers the lane's count in one addition. Ordered after the
  // consumers' last read of the page by acq_rel here and the acquire in TryGrant.
  EVT_FN void Return(u32 lane, i32 page) {
    Sync::LocalFetchAdd(&word, (u64{1} << page) - PageWord::One(lane));
  }
};

}  // namespace eventide
