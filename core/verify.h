// Refuses graphs that could hang, race or read what is not there, before anything runs: each error
// names the tensor or event, the task grid, and the smallest symbol values (lexicographic in
// declaration order) that were found to show it.
//
// What follows from declarations is decided in closed form (names, arities, ranges, page floors,
// paths between grids). What depends on tasks is enumerated: for symbol values at the ends of their
// ranges, around every tile size, and random ones, all tasks are expanded - coordinates that appear
// in no edge are one task, since their tasks are interchangeable - and arrivals are counted against
// targets, waits against the linear order, and every access to a tensor against all earlier
// conflicting ones: a path of events must lead from the earlier to the later task. That two tasks
// run on one worker is no path.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/program.h"
#include "core/samples.h"

namespace eventide {

// Values of the published tensors of one imagined step.
using PublishedValues = std::function<int64_t(int tensor, int64_t element)>;

struct VerifyOptions {
  // Pages of a worker; 0: not known yet, the floors are not compared with it.
  int pool_pages = 0;
  // Symbol choices with more expanded tasks than this are left out.
  int64_t max_tasks = 6000;
  size_t max_samples = 64;
  // Machine words that may be merged in all (about one per nanosecond): bounds the time.
  int64_t max_work = int64_t{40} << 20;
  uint64_t seed = 1;
  // Values for the published tensors that belong together, as the graph's ops would write them.
  // Needed to enumerate graphs whose edges or regions use Loads; without it these are checked for
  // structure only.
  std::function<PublishedValues(const SymbolValues& symbols, uint64_t seed)> sample_published;
  int published_samples = 3;  // per choice of symbols
  // Receives what was not enumerated and why.
  std::vector<std::string>* notes = nullptr;
};

absl::Status Verify(const Graph& graph, const VerifyOptions& options = {});

// Parts of Verify. The first three look at declarations; the rest at the lowered program.
absl::Status VerifyDeclarations(const Graph& graph);
absl::Status VerifyExpressions(const Graph& graph);
absl::Status VerifyEdges(const Graph& graph);
absl::Status VerifyFloors(const Graph& graph, int pool_pages);
absl::Status VerifyPaths(const Program& program);
absl::Status VerifyTasks(const Graph& graph, const Program& program, const VerifyOptions& options);

}  // namespace eventide
