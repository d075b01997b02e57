// The worker loop: how each role walks the program's one linear order, and what it does with a task. The
// same on every target; targets differ in the worker type W and in the program type P, which is either
// the generated source (jit/codegen.cc) or the evaluated form (runtime/evaluated_program.h).
//
// P, the program:
//   int Sections(), Layers(section), FirstGrid(section), GridCount(section)
//   bool IsGate(grid), DeviceExtent(grid); u32 Policy(grid); const Node& NodeOf(grid)
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
//   u32 TakeTicket(element)           the next ticket of a counter, the same for all roles of a worker
//   bool Begin(task), void End(task)  around a task in this role
//   void Produce(lane)                which lane the next part asks pages of (RunSequential only)
//   bool aborted()
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
  c.at[2] = index % extent2;
  c.at[1] = index / extent2 % extent1;
  c.at[0] = index / extent2 / extent1;
  return c;
}

// What a role waits for before it visits a task: nothing, the publications that the edges' indices depend
// on, or these and the task's events.
enum class TaskWaits { kNone, kIndices, kAll };

template <TaskWaits kWaits, class P>
EVT_FN int WaitCount(const P& p, i32 grid) {
  if constexpr (kWaits == TaskWaits::kNone) return 0;
  return p.EdgePublications(grid) + (kWaits == TaskWaits::kAll ? p.Waits(grid) : 0);
}
// Publications first: the boxes of events are made of what they publish.
template <TaskWaits kWaits, class P>
EVT_FN ElementBox WaitAt(const P& p, const StepView& step, i32 grid, const Coord& at, int i) {
  const int indices = p.EdgePublications(grid);
  if (kWaits == TaskWaits::kIndices || i < indices) return p.EdgePublication(step, grid, at, i);
  return p.WaitBox(step, grid, at, i - indices);
}

template <class P, class W>
EVT_FN bool AwaitTask(const P& p, W& w, i32 grid, const Coord& at) {
  for (int i = 0; i < WaitCount<TaskWaits::kAll>(p, grid); ++i) {
    if (!w.Await(p, WaitAt<TaskWaits::kAll>(p, w.step, grid, at, i), TaskName{grid, at})) return false;
  }
  return true;
}

// Calls enter(grid, coord), unless it says no waits for the task, and calls visit(grid, coord), for every
// task of this worker, in linear order. Every worker takes tasks in that order under every policy, so the
// oldest unfinished task can always run (docs/design.md).
//
// A grid's first turn waits for the publications its extents depend on. It shares the one call of Await
// with the tasks' turns: all that is inlined there is in the kernel once for each role.
template <TaskWaits kWaits, class P, class W, class Enter, class Visit>
EVT_FN void WalkTasks(const P& p, W& w, const Enter& enter, const Visit& visit) {
  const i32 workers = static_cast<i32>(w.workers);
  i32 base = 0;  // the worker that takes the grid's first task
  u64 seen = 0;  // a bit per event whose publication holds for the whole step and has been awaited
  for (int section = 0; section < p.Sections(); ++section) {
    for (i32 layer = 0; layer < p.Layers(section); ++layer) {
      const int end = p.FirstGrid(section) + p.GridCount(section);
      for (int grid = p.FirstGrid(section); grid < end; ++grid) {
        const i32 policy = static_cast<i32>(p.Policy(grid));
        i32 extent1 = 1, extent2 = 1, total = 0, index = 0;
        for (i32 turn = 0;; turn = 1) {
          const bool first = Opaque(turn) == 0;
          Coord at{layer, {0, 0, 0}};
          int waits = p.Publications(grid);
          if (!first) {
            if (Opaque(policy) == static_cast<i32>(kPolicyTicket)) {
              index = static_cast<i32>(w.TakeTicket(p.Ticket(grid, layer)));
              if (w.aborted()) return;
            }
            if (static_cast<u32>(index) >= static_cast<u32>(total)) break;
            at = Unflatten<P>(index, extent1, extent2, layer);
            index += workers;
            if (!enter(grid, at)) continue;
            waits = WaitCount<kWaits>(p, grid);
          }
          for (int i = 0; i < waits; ++i) {
            ElementBox box;
            u64 bit = 0;
            if (first) {
              box = p.Publication(w.step, grid, layer, i);
              bit = p.StepWide(grid, i) && box.event < 64 ? u64{1} << box.event : 0;
              if (seen & bit) continue;
            } else {
              box = WaitAt<kWaits>(p, w.step, grid, at, i);
            }
            if (!w.Await(p, box, TaskName{grid, at})) return;
            seen |= bit;
          }
          if (!first) {
            if (!visit(grid, at)) return;
            continue;
          }
          extent1 = p.Extent(w.step, grid, layer, 1);
          extent2 = p.Extent(w.step, grid, layer, 2);
          total = p.Extent(w.step, grid, layer, 0) * extent1 * extent2;
          index = static_cast<i32>(w.worker) - base;
          if (index < 0) index += workers;
        }
        if (policy == static_cast<i32>(kPolicyTicket)) continue;
        base = p.DeviceExtent(grid) ? kRestartWorker : (base + total) % workers;
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
  const auto enter = [&](i32 grid, const Coord& at) {
    if (p.IsGate(grid) || !p.HasStream(grid)) return false;
    return EnterTask<P>(w, TaskName{grid, at});
  };
  WalkTasks<TaskWaits::kIndices>(p, w, enter, [&](i32 grid, const Coord& at) {
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
  const auto enter = [&](i32 grid, const Coord& at) {
    return EnterTask<P>(w, TaskName{grid, at});
  };
  WalkTasks<TaskWaits::kAll>(p, w, enter, [&](i32 grid, const Coord& at) {
    MarkReady<P>(w);
    if (p.IsGate(grid)) {
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
  const auto enter = [&](i32 grid, const Coord& at) {
    if (p.IsGate(grid)) return false;
    return EnterTask<P>(w, TaskName{grid, at});
  };
  WalkTasks<TaskWaits::kNone>(p, w, enter, [&](i32 grid, const Coord& at) {
    if (!w.AwaitReady()) return false;
    MarkReady<P>(w);
    p.Compute(w, w.step, grid, at);
    w.Publish();  // every thread of the role has written; the notifies below release it
    if (w.aborted()) return false;  // not before: the threads of a role leave together
    NotifyTask(p, w, grid, at);
    w.Finished();
    MarkEnd<P>(w);
    return true;
  });
}

// All roles in turn, for a worker that copies nothing: pages are views of the memory itself.
template <class P, class W>
EVT_FN void RunSequential(const P& p, W& w) {
  const auto enter = [&](i32 grid, const Coord& at) {
    return EnterTask<P>(w, TaskName{grid, at});
  };
  WalkTasks<TaskWaits::kAll>(p, w, enter, [&](i32 grid, const Coord& at) {
    MarkReady<P>(w);
    if (p.IsGate(grid)) {
      PassGate(p, w, grid, at);
      w.Finished();
      MarkEnd<P>(w);
      return true;
    }
    if (p.HasStream(grid)) {
      w.Produce(kLaneStream);
      p.Stream(w, w.step, grid, at);
    }
    w.Produce(kLaneInput);
    p.Input(w, w.step, grid, at);
    p.Compute(w, w.step, grid, at);
    if (w.aborted()) return false;
    w.Publish();
    NotifyTask(p, w, grid, at);
    w.Finished();
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
