// Prompt lookup: what followed the latest earlier occurrence of a sequence's last tokens is guessed to
// follow again. The longest match of at most kMaxMatch tokens wins, then the latest. One of m tokens is
// trusted for 2 m more: on SmolLM2's answers that brings what drafting all that is allowed after any match
// does, for a third of the drafts.
#pragma once

#include "ops/select.h"

namespace eventide {

// How many drafts a row may have next, after a step in which `accepted` of `drafted` were right: two more when all
// were, one fewer when one was not, from 1 to `limit` (transformers calls this the heuristic schedule). A step
// without drafts says nothing.
EVT_FN u32 NextDraftLength(u32 length, u32 limit, u32 drafted, u32 accepted) {
  if (drafted == 0) return length;
  return accepted == drafted ? Min(length + 2, limit) : Max(length, 2u) - 1;
}

struct Lookup {
  static constexpr i32 kMaxMatch = 8;
  static constexpr i32 kReach = 1 << 15;  // tokens that are looked back over

  // Writes at most `most` tokens behind the history's `length` known ones; how many. Barriers within;
  // the history is visible to all threads before.
  template <class W>
  static EVT_FN i32 Draft(W& w, i32* history, i32 length, i32 most, float* memory) {
    if (most <= 0) return 0;
    // Candidates by how far back they lie: that is how `Largest` prefers the latest.
    const Best match = Largest(w, memory, Min(length - 1, kReach), [&](i32 i) {
      const i32 back = i + 1;
      i32 same = 0;
      EVT_ROLLED
      while (same < Min(kMaxMatch, length - back) &&
             history[length - 1 - same] == history[length - 1 - same - back]) {
        ++same;
      }
      return Best{static_cast<float>(same), back};
    });
    if (!(match.value >= 1.0f)) return 0;  // also NaN: no candidate at all
    const i32 count = Min(most, 2 * static_cast<i32>(match.value));
    // A match that reaches the end goes on with its own period.
    w.Parallel(count, [&](i32 i) {
      history[length + i] = history[length - match.id + i % match.id];
    });
    return count;
  }
};

}  // namespace eventide
