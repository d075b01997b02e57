// Which of many waits is the story of an aborted step.
#include "runtime/abort.h"

#include <algorithm>
#include <random>

#include "tests/jit/toy_graphs.h"

namespace eventide {
namespace {

AbortRecord At(u32 cause, int grid, int layer, int tile, int column) {
  AbortRecord record = {};
  record.cause = cause;
  record.worker = static_cast<u32>(10 * layer + column);
  record.role = cause == kAbortStuckPage ? kRoleCompute : kRoleInput;
  record.grid = grid;
  record.layer = layer;
  record.at[0] = tile;
  record.at[1] = column;
  record.seen = 1;
  record.expected = cause == kAbortStuckEvent ? 2 : 0;
  return record;
}

// The story of these records, whatever their order.
std::string StoryOf(const Program& program, std::vector<AbortRecord> records) {
  std::mt19937 random(1);
  const std::string story(DescribeAbort(program, records).message());
  for (int i = 0; i < 20; ++i) {
    std::shuffle(records.begin(), records.end(), random);
    CHECK(std::string(DescribeAbort(program, records).message()) == story);
  }
  return story;
}

bool Has(const std::string& text, const std::string& part) {
  INFO(text);
  return text.find(part) != std::string::npos;
}

TEST_CASE("of many waiting tasks the oldest in linear order is told") {
  const absl::StatusOr<Program> program = Lower(ToyLayersGraph());
  REQUIRE(program.ok());
  const int fill = 0, mix = 1;
  REQUIRE(program->grids[1].name == "mix");
  const std::vector<AbortRecord> waits = {
      At(kAbortStuckEvent, mix, 2, 0, 0), At(kAbortStuckEvent, mix, 1, 1, 0),
      At(kAbortStuckEvent, mix, 1, 0, 2), At(kAbortStuckEvent, mix, 1, 0, 1),
      At(kAbortStuckPage, mix, 1, 3, 0)};
  CHECK(Has(StoryOf(*program, waits), "mix, layer 1, task (0, 1) waited for event"));

  // Sections before layers, grids after them.
  std::vector<AbortRecord> more = waits;
  more.push_back(At(kAbortStuckPage, fill, 0, 7, 0));
  CHECK(Has(StoryOf(*program, more), "(compute) at fill, task (7) waited for a page"));
}

TEST_CASE("at one task, the role that waits for an event explains those that wait for pages") {
  const absl::StatusOr<Program> program = Lower(ToyLayersGraph());
  REQUIRE(program.ok());
  CHECK(Has(StoryOf(*program, {At(kAbortStuckPage, 1, 1, 0, 1), At(kAbortStuckEvent, 1, 1, 0, 1),
                               At(kAbortStuckTask, 1, 1, 0, 1)}),
            "waited for event"));
  CHECK(Has(StoryOf(*program, {At(kAbortStuckPage, 1, 1, 0, 1), At(kAbortStuckTask, 1, 1, 0, 1)}),
            "the task did not end"));
}

TEST_CASE("what is no wait is not told: fired events, ended tasks, roles without a task") {
  const absl::StatusOr<Program> program = Lower(ToyLayersGraph());
  REQUIRE(program.ok());
  AbortRecord fired = At(kAbortStuckEvent, 1, 0, 0, 0);
  fired.seen = fired.expected;
  AbortRecord nowhere = At(kAbortStuckTask, -1, 0, 0, 0);
  const std::vector<AbortRecord> quiet = {fired, nowhere, At(kAbortNone, 0, 0, 0, 0)};
  CHECK(OldestRecord(*program, quiet) == -1);
  CHECK(Has(StoryOf(*program, quiet), "no worker was at one"));

  // A role that waits for another one after an old task stands behind every task that has not ended.
  std::vector<AbortRecord> records = quiet;
  records.push_back(At(kAbortStuckRole, 0, 0, 0, 0));
  CHECK(Has(StoryOf(*program, records), "at fill, task (0) waited for another role"));
  records.push_back(At(kAbortStuckEvent, 1, 2, 5, 5));
  CHECK(Has(StoryOf(*program, records), "mix, layer 2, task (5, 5) waited for event"));
}

}  // namespace
}  // namespace eventide
