// Early exit: tokens leave behind some layers, on a test that the device makes (ops/exit_test.h). What the
// ops of it share.
//
// A token that has been decided keeps the state it had: its logits come from it, and so do its keys and
// values of all later layers. Whether it is decided depends on the token and what came before it alone, so
// outputs depend on neither batch, chunks nor drafts. A row leaves the step when all its tokens have been
// decided; until then they wait for it: layers compute them, and `exit_settle` puts their state back.
//
// Tokens are in the order of rows that are left: a point moves those who stay together. Behind them, from
// `tokens` on, lie the states of those who left, in the order of leaving, so that those who left before a
// layer are a prefix.
#pragma once

#include "device/base.h"

namespace eventide {

// Elements of a line of the published tensor "exit_counts"; line l holds for layer l, the last one for what
// follows all layers.
enum ExitCount : i32 {
  kExitStay = 0,     // tokens that the layer computes
  kExitLeft = 1,     // tokens that left before it
  kExitItems = 2,    // attention items of those who stay
  kExitSettles = 3,  // 1: states are put in place in front of it, else none has to be
  kExitTests = 4,    // tasks that test tokens behind it
  kExitOutputs = 5,  // of the step
  kExitCounts = 6,
};

inline constexpr i32 kExitTestTokens = 2;  // of such a task: their sums take one round of eight warps

// Where tokens may leave: behind `first` layers, and then behind every `every` more, up to `last`.
struct ExitPoints {
  i32 first, every, last;

  // Whether there is a point between layer - 1 and `layer`.
  EVT_FN bool InFrontOf(i32 layer) const {
    return layer >= first && layer <= last && (layer - first) % every == 0;
  }
  // The first layer behind the next point, for a layer behind the last one: `none`.
  EVT_FN i32 Next(i32 layer, i32 none) const {
    if (layer < first) return first;
    return layer >= last ? none : layer + every - (layer - first) % every;
  }
};

// What holds from the layer behind a point to the next one.
struct ExitLine {
  i32 stay, left, items, outputs;
  i32 moves;  // the point puts states in place
  i32 held;   // those who are decided and stay need theirs back behind every layer
};
// Writes it to the lines of those layers, before `end`.
template <class W>
EVT_FN void PublishExits(W& w, i32* counts, const ExitPoints& points, i32 layer, i32 end,
                         const ExitLine& values) {
  w.Parallel(points.Next(layer, end) - layer, [&](i32 i) {
    i32* line = counts + (layer + i) * kExitCounts;
    line[kExitStay] = values.stay;
    line[kExitLeft] = values.left;
    line[kExitItems] = values.items;
    line[kExitSettles] = i == 0 ? values.moves : values.held;
    line[kExitOutputs] = values.outputs;
    line[kExitTests] =
        points.InFrontOf(layer + i + 1) ? CeilDiv(values.stay, kExitTestTokens) : 0;
  });
}

// One of the tokens that left.
struct ExitPlace {
  i32 slot, position;
};

}  // namespace eventide
