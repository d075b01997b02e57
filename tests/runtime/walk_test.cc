// The walk of device/loop.h: grids that have no tasks in a step cost it nothing, and leave the others' workers alone.
#include "device/loop.h"

#include <string>
#include <vector>

#include "device/arch/host_turns.h"
#include "tests/support/test.h"

namespace eventide {
namespace {

// Two sections; extents are the same in all layers, but for those below 0, which only the device knows.
struct Grids {
  std::vector<std::vector<i32>> sections;
  std::vector<i32> layers;

  int Sections() const { return static_cast<int>(sections.size()); }
  i32 Layers(int section) const { return layers[section]; }
  int FirstGrid(int section) const {
    int first = 0;
    for (int s = 0; s < section; ++s) first += GridCount(s);
    return first;
  }
  int GridCount(int section) const { return static_cast<int>(sections[section].size()); }
  i32 Number(int grid) const {
    int section = 0;
    while (grid >= GridCount(section)) grid -= GridCount(section++);
    return sections[section][grid];
  }
  bool StepKnown(int grid) const { return Number(grid) >= 0; }
  bool DeviceExtent(int grid) const { return Number(grid) < 0; }
  i32 Extent(const StepView&, int grid, i32, int dim) const { return dim > 0 ? 1 : Number(grid) < 0 ? 1 : Number(grid); }
  bool IsGate(int) const { return false; }
  bool HasStream(int) const { return false; }
  bool StartsEarly(int) const { return false; }
  u32 Policy(int) const { return kPolicyStatic; }
  i32 Ticket(int, i32) const { return 0; }
  int Publications(int) const { return 0; }
  int EdgePublications(int) const { return 0; }
  int Waits(int) const { return 0; }
  bool StepWide(int, int) const { return false; }
  ElementBox Publication(const StepView&, int, i32, int) const { return {}; }
  ElementBox EdgePublication(const StepView&, int, const Coord&, int) const { return {}; }
  ElementBox WaitBox(const StepView&, int, const Coord&, int) const { return {}; }
};

struct Walker {
  StepView step = {};
  u32 worker, workers;
  bool knows;
  HostTurns turns = {};
  mutable std::vector<i32> asked = {};  // about which grids

  void KnowTurns(const Grids& p) {
    if (knows) turns.Know(p, step, workers);
  }
  GridTurn TurnOf(const Grids& p, i32 grid) const {
    if (asked.empty() || asked.back() != grid) asked.push_back(grid);
    return knows ? turns.Of(p, grid) : UnknownTurn(p, grid);
  }
  bool Await(const Grids&, const ElementBox&, const TaskName&) { return true; }
  u32 TakeTicket(i32) { return 0; }
  bool aborted() const { return false; }
};

std::string Tasks(const Grids& grids, Walker& walker) {
  std::string tasks;
  WalkTasks<TaskWaits::kNone>(
      grids, walker, [](i32, const Coord&, u32) { return true; },
      [&](i32 grid, const Coord& at, u32) {
        tasks += std::to_string(grid) + "/" + std::to_string(at.layer) + "/" + std::to_string(at.at[0]) + " ";
        return true;
      });
  return tasks;
}

TEST_CASE("a walk passes grids without tasks and takes the same tasks as one that looks at each") {
  const std::vector<Grids> programs = {
      {{{1}, {3, 0, 0, 2}, {1}}, {1, 3, 1}},  {{{0, 0}, {0, 5, 0}, {0}}, {1, 2, 1}},
      {{{2, 0}, {-1, 0, 4, 0, 0}, {0, 1}}, {1, 2, 1}}, {{std::vector<i32>(30, 1), {0, 0, 3, 0, 7}}, {1, 2}},
  };
  for (const Grids& grids : programs) {
    for (u32 workers : {1u, 2u, 3u, 5u}) {
      for (u32 worker = 0; worker < workers; ++worker) {
        Walker looks{{}, worker, workers, false}, knows{{}, worker, workers, true};
        CHECK(Tasks(grids, looks) == Tasks(grids, knows));
      }
    }
  }
}

TEST_CASE("only the first grid of a section is looked at where it has no tasks") {
  const Grids grids = {{{1, 0}, {3, 0, 0, 2, 0}, {0, 1}}, {1, 2, 1}};
  Walker walker{{}, 0, 2, true};
  Tasks(grids, walker);
  CHECK(walker.asked == std::vector<i32>{0, 2, 5, 2, 5, 7, 8});
}

}  // namespace
}  // namespace eventide
