// The worker loop: how each role walks the program's one linear order, and what it does with a task. The
// same on every target; targets differ in the worker type W and in the program type P, which is either
// the generated source (jit/codegen.cc) or the evaluated form (runtime/evaluated_program.h).
//
// P, the program:
//   int Sections(), Layers(section), FirstGrid(section), GridCount(section)
//   bool IsGate(grid), DeviceExtent(grid), HasStream(grid), StartsEarly(grid); u32 Policy(grid); const Node& NodeOf(grid)
//   bool StepKnown(grid)                extents without layer and Loads
//   i32 Extent(step, grid, layer, dim)                  dims beyond the grid's rank are 1
//   i32 Ticket(grid, layer)                             ticket counter's element in the bank
//   int Publications(grid), ElementBox Publication(step, grid, layer, i), bool StepWide(grid, i)
//   int EdgePublications(grid), ElementBox EdgePublication(step, grid, coord, i)
//   int Waits(grid), ElementBox WaitBox(step, grid, coord, i); Notifies / NotifyBox likewise
//   i32 Element(event, index), Target(step, event, index), Derived(step, event, index)
//   void Stream/Input/Compute(worker, step, grid, coord)   the op's part, if it has one
//
// W, a worker in one role (or in all of them, on the CPU):
//   StepView step; u32 worker, workers
//   bool Await(p, box, task)          waits until every element of the box has fired; false: aborted
//   void Notify(p, box)               one arrival on every element; after it is called, what the task
//                                     wrote is visible to whoever sees the arrival
//   void Done(p, task)                the task has written everything: NotifyTask and Finished, now or
//                                     soon, and visible to whoever sees an arrival
//   u32 TakeTicket(element)           the next ticket of a counter, the same for all roles of a worker
//   void KnowTurns(p)                 before a walk
//   GridTurn TurnOf(p, grid)          what is known of a grid before its publications have fired
//   bool Begin(task), void End(task)  around a task in this role
//   void Produce(lane)                which lane the next part asks pages of (RunSequential only)
//   bool aborted(), Leaves()           Leaves: all threads of the compute role know of it
//   void TimeTask(task), TimeReady(), TimeEnd()
//                                     only when P::kTimeline: notes for the timeline (timeline.h)
#pragma once

#include "device/abi.h"
#include "device/atomic.h"
#include "device/event.h"
#include "device/op.h"
#include "device/pages.h"
#include "device/timeline.h"

namespace eventide {

// Which task: enough to report it.
struct TaskName {
  i32 grid;
  Coord at;
};

// After a grid whose extent only the device knows, static assignment restarts here: where it would
// continue would depend on a value that not every role has read yet.
inline constexpr i32 kRestartWorker = 0;

template <class P>
EVT_FN Coord Unflatten(i32 index, i32 extent1, i32 extent2, i32 layer) {
  Coord c;
  c.layer = layer;
  c.at[0] = 0;
  c.at[2] = 0;
  // Most grids are one wide in one dim and end in a 1: spared two divisions.
  if (extent2 != 1) {
    c.at[2] = index % extent2;
    index /= extent2;
  }
  if (index >= extent1) {
    c.at[0] = index / extent1;
    index -= c.at[0] * extent1;
  }
  c.at[1] = index;
  return c;
}

// What the walk needs of a grid. Workers remember it, worked out once a step for grids whose extents are the same in all
// layers and need no other task's word (KnownTurn).
struct alignas(16) GridTurn {
  enum Flag : u32 { kTicket = 1, kGate = 2, kDeviceExtent = 4, kStream = 8, kEarly = 16 };
  i32 extent1, extent2, total;  // total < 0: evaluated when its publications have fired
  i32 advance;                  // total modulo the workers
  u16 flags;
  u16 idle;  // grids behind it, in its section, that have no tasks in this step: the walk passes them
  i32 publications, edge_publications, waits;
};
inline constexpr i32 kKnownGrids = 32;  // of a program, the first ones

template <class P>
EVT_FN GridTurn UnknownTurn(const P& p, i32 grid) {
  u32 flags = 0;
  if (p.Policy(grid) == kPolicyTicket) flags |= GridTurn::kTicket;
  if (p.IsGate(grid)) flags |= GridTurn::kGate;
  if (p.DeviceExtent(grid)) flags |= GridTurn::kDeviceExtent;
  if (p.HasStream(grid)) flags |= GridTurn::kStream;
  if (p.StartsEarly(grid)) flags |= GridTurn::kEarly;
  return {1, 1, -1, 0, static_cast<u16>(flags), 0, p.Publications(grid), p.EdgePublications(grid), p.Waits(grid)};
}
template <class P>
EVT_FN void Evaluate(const P& p, const StepView& step, i32 grid, i32 layer, i32 workers,
                     GridTurn& turn) {
  turn.extent1 = p.Extent(step, grid, layer, 1);
  turn.extent2 = p.Extent(step, grid, layer, 2);
  turn.total = p.Extent(step, grid, layer, 0) * turn.extent1 * turn.extent2;
  turn.advance = turn.total % workers;
}
template <class P>
EVT_FN i32 CountKnownGrids(const P& p) {
  const int last = p.Sections() - 1;
  return last < 0 ? 0 : Min(p.FirstGrid(last) + p.GridCount(last), kKnownGrids);
}
template <class P>
EVT_FN GridTurn KnownTurn(const P& p, const StepView& step, i32 grid, i32 workers) {
  GridTurn turn = UnknownTurn(p, grid);
  if (p.StepKnown(grid)) Evaluate(p, step, grid, 0, workers, turn);
  return turn;
}
// GridTurn::idle, once the turns of all known grids are there.
template <class P>
EVT_FN u16 IdleBehind(const P& p, const GridTurn* turns, i32 grid) {
  i32 end = 0;
  for (int section = 0; end <= grid; ++section) end = p.FirstGrid(section) + p.GridCount(section);
  end = Min(end, CountKnownGrids(p));
  i32 next = grid + 1;
  while (next < end && turns[next].total == 0) ++next;
  return static_cast<u16>(next - grid - 1);
}

// What a role waits for before it visits a task: nothing, the publications that the edges' indices depend
// on, or these and the task's events.
enum class TaskWaits { kNone, kIndices, kAll };

template <TaskWaits kWaits>
EVT_FN i32 WaitCount(const GridTurn& turn) {
  if constexpr (kWaits == TaskWaits::kNone) return 0;
  return turn.edge_publications + (kWaits == TaskWaits::kAll ? turn.waits : 0);
}
// Publications first: the boxes of events are made of what they publish.
template <TaskWaits kWaits, class P>
EVT_FN ElementBox WaitAt(const P& p, const StepView& step, i32 grid, const GridTurn& turn,
                         const Coord& at, i32 i) {
  if (kWaits == TaskWaits::kIndices || i < turn.edge_publications) {
    return p.EdgePublication(step, grid, at, i);
  }
  return p.WaitBox(step, grid, at, i - turn.edge_publications);
}

template <class P, class W>
EVT_FN bool AwaitTask(const P& p, W& w, i32 grid, const Coord& at) {
  const GridTurn turn = UnknownTurn(p, grid);
  for (i32 i = 0; i < WaitCount<TaskWaits::kAll>(turn); ++i) {
    const ElementBox box = WaitAt<TaskWaits::kAll>(p, w.step, grid, turn, at, i);
    if (!w.Await(p, box, TaskName{grid, at})) return false;
  }
  return true;
}

// Calls enter(grid, coord, flags), unless it says no waits for the task, and calls visit(grid, coord, flags),
// for every task of this worker, in linear order. Every worker takes tasks in that order under every policy,
// so the oldest unfinished task can always run (docs/design.md).
//
// A grid's first turn, where its extents are not known yet, waits for the publications they depend on. It
// shares the one call of Await with the tasks' turns: all that is inlined there is in the kernel once for
// each role.
template <TaskWaits kWaits, class P, class W, class Enter, class Visit>
EVT_FN void WalkTasks(const P& p, W& w, const Enter& enter, const Visit& visit) {
  w.KnowTurns(p);
  const i32 workers = static_cast<i32>(w.workers);
  i32 base = 0;  // the worker that takes the grid's first task
  u64 seen = 0;  // a bit per event whose publication holds for the whole step and has been awaited
  for (int section = 0; section < p.Sections(); ++section) {
    for (i32 layer = 0; layer < p.Layers(section); ++layer) {
      const int end = p.FirstGrid(section) + p.GridCount(section);
      for (int grid = p.FirstGrid(section); grid < end; ++grid) {
        GridTurn turn = w.TurnOf(p, grid);
        i32 index = static_cast<i32>(w.worker) - base;
        if (index < 0) index += workers;
        for (bool known = turn.total >= 0;; known = true) {
          const bool first = Opaque(!known);
          Coord at{layer, {0, 0, 0}};
          i32 waits = turn.publications;
          if (!first) {
            if (Opaque(turn.flags) & GridTurn::kTicket) {
              index = static_cast<i32>(w.TakeTicket(p.Ticket(grid, layer)));
              if (w.aborted()) return;
            }
            if (static_cast<u32>(index) >= static_cast<u32>(turn.total)) break;
            at = Unflatten<P>(index, turn.extent1, turn.extent2, layer);
            index += workers;
            if (!enter(grid, at, turn.flags)) continue;
            waits = WaitCount<kWaits>(turn);
          }
          for (i32 i = 0; i < waits; ++i) {
            ElementBox box;
            u64 bit = 0;
            if (first) {
              box = p.Publication(w.step, grid, layer, i);
              bit = p.StepWide(grid, i) && box.event < 64 ? u64{1} << box.event : 0;
              if (seen & bit) continue;
            } else {
              box = WaitAt<kWaits>(p, w.step, grid, turn, at, i);
            }
            if (!w.Await(p, box, TaskName{grid, at})) return;
            seen |= bit;
          }
          if (!first) {
            if (!visit(grid, at, turn.flags)) return;
            continue;
          }
          Evaluate(p, w.step, grid, layer, workers, turn);
        }
        // Looked up again: registers are for the tasks between.
        const GridTurn after = w.TurnOf(p, Opaque(grid));
        grid += after.idle;
        if (after.flags & GridTurn::kTicket) continue;
        base += after.total >= 0 ? after.advance : turn.total % workers;
        if (base >= workers) base -= workers;
        if (after.flags & GridTurn::kDeviceExtent) base = kRestartWorker;
      }
    }
  }
}

template <class P, class W>
EVT_FN void NotifyTask(const P& p, W& w, i32 grid, const Coord& at) {
  for (int i = 0; i < p.Notifies(grid); ++i) w.Notify(p, p.NotifyBox(w.step, grid, at, i));
}

// A gate: everything its grid would have waited for has fired (AwaitTask), so elements that none of the
// grid's tasks will notify receive their one arrival.
template <class P, class W>
EVT_FN void PassGate(const P& p, W& w, i32 grid, const Coord& at) {
  for (int i = 0; i < p.Notifies(grid); ++i) {
    const ElementBox box = p.NotifyBox(w.step, grid, at, i);
    for (i32 k = 0; k < box.size(); ++k) {
      ElementBox one{box.event, {}, {1, 1, 1, 1}};
      box.Index(k, one.low);
      if (p.Derived(w.step, box.event, one.low) == 0) w.Notify(p, one);
    }
  }
}

// Marks of the timeline, which other programs do not have.
template <class P, class W>
EVT_FN void MarkStart(W& w, const TaskName& name) {
  if constexpr (kRecordsTimeline<P>) w.TimeTask(name);
}
template <class P, class W>
EVT_FN void MarkReady(W& w) {
  if constexpr (kRecordsTimeline<P>) w.TimeReady();
}
template <class P, class W>
EVT_FN void MarkEnd(W& w) {
  if constexpr (kRecordsTimeline<P>) w.TimeEnd();
}

template <class P, class W>
EVT_FN bool EnterTask(W& w, const TaskName& name) {
  w.Begin(name);
  MarkStart<P>(w, name);
  return true;
}

// The stream role: never waits for activations, only for published extents and indices.
template <class P, class W>
EVT_FN void RunStream(const P& p, W& w) {
  const auto enter = [&](i32 grid, const Coord& at, u32 flags) {
    if ((flags & GridTurn::kStream) == 0) return false;
    return EnterTask<P>(w, TaskName{grid, at});
  };
  WalkTasks<TaskWaits::kIndices>(p, w, enter, [&](i32 grid, const Coord& at, u32) {
    MarkReady<P>(w);
    p.Stream(w, w.step, grid, at);
    MarkEnd<P>(w);
    return !w.aborted();
  });
}

// The input role: waits for the task's events, tells the compute role that it may read what they guard
// (Ready), then copies the activations. Gates are this role's alone.
template <class P, class W>
EVT_FN void RunInput(const P& p, W& w) {
  const auto enter = [&](i32 grid, const Coord& at, u32) {
    return EnterTask<P>(w, TaskName{grid, at});
  };
  WalkTasks<TaskWaits::kAll>(p, w, enter, [&](i32 grid, const Coord& at, u32 flags) {
    MarkReady<P>(w);
    if (flags & GridTurn::kGate) {
      PassGate(p, w, grid, at);
      w.Finished();
      MarkEnd<P>(w);
      return true;
    }
    w.Ready();
    p.Input(w, w.step, grid, at);
    MarkEnd<P>(w);
    return !w.aborted();
  });
}

// The compute role: consumes pages in the order the other two roles asked for them, writes, notifies.
template <class P, class W>
EVT_FN void RunCompute(const P& p, W& w) {
  const auto enter = [&](i32 grid, const Coord& at, u32 flags) {
    if (flags & GridTurn::kGate) return false;
    return EnterTask<P>(w, TaskName{grid, at});
  };
  WalkTasks<TaskWaits::kNone>(p, w, enter, [&](i32 grid, const Coord& at, u32 flags) {
    // The others await themselves.
    if ((flags & GridTurn::kEarly) == 0 && !w.AwaitReady()) return false;
    p.Compute(w, w.step, grid, at);
    if (w.Leaves()) return false;
    w.Done(p, TaskName{grid, at});
    MarkEnd<P>(w);
    return true;
  });
}

// All roles in turn, for a worker that copies nothing: pages are views of the memory itself.
template <class P, class W>
EVT_FN void RunSequential(const P& p, W& w) {
  const auto enter = [&](i32 grid, const Coord& at, u32) {
    return EnterTask<P>(w, TaskName{grid, at});
  };
  WalkTasks<TaskWaits::kAll>(p, w, enter, [&](i32 grid, const Coord& at, u32 flags) {
    MarkReady<P>(w);
    if (flags & GridTurn::kGate) {
      PassGate(p, w, grid, at);
      w.Finished();
      MarkEnd<P>(w);
      return true;
    }
    if (flags & GridTurn::kStream) {
      w.Produce(kLaneStream);
      p.Stream(w, w.step, grid, at);
    }
    w.Produce(kLaneInput);
    p.Input(w, w.step, grid, at);
    p.Compute(w, w.step, grid, at);
    if (w.aborted()) return false;
    w.Done(p, TaskName{grid, at});
    MarkEnd<P>(w);
    return true;
  });
}

// The step's derived symbols, by every worker itself: the sum of the rows' query lengths.
EVT_FN i32 QueryLength(const Row& row, const SlotState* slots, u64 step) {
  if (row.query_length != kDeviceKnows) return static_cast<i32>(row.query_length);
  // Relaxed: one word says all; counterpart: the store in ops/sample.h.
  const u32 pace = PaceOf(DirectSync::LoadRelaxed(&slots[row.slot].pace), step);
  return pace & kPaceEnded ? 0 : static_cast<i32>(1 + Min(row.draft_length, pace));
}

}  // namespace eventide
