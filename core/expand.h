// All tasks of a program for one choice of symbol values, with the event elements they wait on and
// notify. Tasks that differ only in coordinates no edge (nor region) mentions are one task with a
// weight.
#pragma once

#include <memory>
#include <vector>

#include "core/verify.h"

namespace eventide {

struct ExpandedTask {
  int grid;
  int layer;
  int64_t at[kMaxCoords];
  int64_t weight;  // tasks it stands for
  // Parts of Expansion::elements: publications and waits, then notifies.
  int first_wait, first_notify, end;
};

// What a task touches: [low, high) in each dim that is narrowed; dims behind are whole.
inline constexpr int kMaxBoxDims = 4;  // dims behind are taken whole: more conflicts, never fewer
struct Box {
  int dims = 0;
  int64_t low[kMaxBoxDims], high[kMaxBoxDims];
};
struct Access {
  int task;
  int tensor;
  bool writes;
  bool is_load;  // not an operand: read to evaluate an extent or an edge
  bool has_region;
  Box box;
};

struct Expansion {
  std::vector<ExpandedTask> tasks;  // in linear order
  std::vector<int> elements;        // bank elements
  std::vector<Access> accesses;     // in the order of tasks
  std::vector<int64_t> derived;     // per bank element: the program's derived target...
  std::vector<char> possible;       // whether any grid could notify it, if its extents were largest
  std::vector<int64_t> target;      // ...and what waiters compare with; -1 outside of the shape
};

class Expander {
 public:
  Expander(const Graph& graph, const Program& program);
  ~Expander();

  // The error is a fault of the graph for these values: an index or a Load out of bounds.
  // ResourceExhausted: more than `max_tasks` tasks (or eight times as many edges).
  absl::StatusOr<Expansion> Expand(const SymbolValues& values, const PublishedValues& published,
                                   int64_t max_tasks) const;

  std::string ElementText(int element) const;
  std::string TaskName(const ExpandedTask& task) const;

 private:
  struct Plan;
  class Run;
  const Graph& graph_;
  const Program& program_;
  std::vector<Plan> plans_;
  std::vector<Expr> potentials_;  // per event: core/targets.h
};

}  // namespace eventide
