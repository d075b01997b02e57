// What a worker that is one thread, or one role of one, knows of the program's grids when a step begins (device/loop.h).
#pragma once

#include "device/loop.h"

namespace eventide {

class HostTurns {
 public:
  template <class P>
  EVT_FN void Know(const P& p, const StepView& step, u32 workers) {
    const i32 known = CountKnownGrids(p);
    for (i32 grid = 0; grid < known; ++grid) turns_[grid] = KnownTurn(p, step, grid, static_cast<i32>(workers));
    for (i32 grid = 0; grid < known; ++grid) turns_[grid].idle = IdleBehind(p, turns_, grid);
  }
  template <class P>
  EVT_FN GridTurn Of(const P& p, i32 grid) const {
    return grid < kKnownGrids ? turns_[grid] : UnknownTurn(p, grid);
  }

 private:
  GridTurn turns_[kKnownGrids];
};

}  // namespace eventide
