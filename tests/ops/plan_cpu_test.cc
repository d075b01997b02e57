// The plan task's tables against a plain computation, for random steps and for the edges.
#include "tests/ops/plan_case.h"

namespace eventide {
namespace {

TEST_CASE("plan's tables and items cover random steps exactly") {
  RandomValues random(1);
  const std::vector<OpBackend> backends = HostBackends();
  for (int trial = 0; trial < 60; ++trial) {
    PlanShape s;
    s.head_dim = 8 * random.Between(1, 32);
    s.group = random.Between(1, 20);
    s.kv_heads = random.Between(1, 8);
    s.window = random.Below(3) ? 0 : random.Between(1, 3000);
    if (random.Below(2)) s.long_tokens = random.Between(1, 100);
    s.long_rows = AttentionRows(s.head_dim, 2);
    OpBackend backend = backends[trial % backends.size()];
    backend.workers = random.Between(1, 8);
    INFO("trial " << trial << ", " << backend.name);
    CheckPlan(backend, s, RandomStep(random, random.Below(s.max_rows + 1), s.max_tokens, 30000));
  }
}

TEST_CASE("plan splits a long context over workers, less so where tables are short") {
  OpStep step;
  step.slots.resize(2);
  step.slots[0].context_length = 100000;
  step.slots[1].context_length = 5000;
  step.rows = {{0, kDeviceKnows, 0, kRowSample}, {1, 100, 0, kRowNone}};
  PlanShape s;
  s.kv_heads = 1;
  const OpBackend backend{"cpu", 0, 7, "static"};
  const Planned wide = RunPlan(backend, s, step);
  CheckItems(wide, step, s);
  CHECK(wide.items[0].parts > 2);
  for (const int spare : {0, 1, 5}) {
    PlanShape narrow = s;
    narrow.spare_items = spare;
    narrow.max_partials = spare * 100;
    narrow.max_groups = spare;
    CheckPlan(backend, narrow, step);
  }
}

TEST_CASE("parts are half as long where they keep no more than half of the workers") {
  PlanShape s;
  s.kv_heads = 1;
  s.part_tokens = 0;
  const OpBackend backend{"cpu", 0, 8, "static"};
  for (const int rows : {1, 2}) {  // four parts of 256 positions each, or two of 512
    OpStep step;
    step.slots.resize(rows);
    for (int r = 0; r < rows; ++r) {
      step.slots[r].context_length = 1023;
      step.rows.push_back({static_cast<u32>(r), kDeviceKnows, 0, kRowSample});
    }
    const Planned p = RunPlan(backend, s, step);
    CheckItems(p, step, s);
    CAPTURE(rows);
    CHECK(p.items[0].parts == (rows == 1 ? 4 : 2));
    CHECK(static_cast<int>(p.items.size()) == 4);
  }
}

// Eight rows of 131,071 tokens used to stay whole where the table had room for 4,000 partials: each kept as many as a tile
// of eight tokens would need.
TEST_CASE("a row of one token keeps partials for one token") {
  OpStep step;
  constexpr int kRows = 8, kContext = 131071;
  step.slots.resize(kRows);
  for (int r = 0; r < kRows; ++r) {
    step.slots[r].context_length = kContext;
    step.rows.push_back({static_cast<u32>(r), kDeviceKnows, 0, kRowSample});
  }
  PlanShape s;
  s.kv_heads = 1;
  s.part_tokens = 0;
  s.max_partials = kRows * (ChunkOf(kContext) + 1);
  const OpBackend backend{"cpu", 0, 16, "static"};
  const Planned p = RunPlan(backend, s, step);
  CheckItems(p, step, s);
  CHECK(p.items[0].parts == 2);
  s.max_partials -= 1;
  CHECK(RunPlan(backend, s, step).items[0].parts == 1);
}

TEST_CASE("plan accepts no rows, finished rows and the most rows it promises") {
  PlanShape s;
  const OpBackend backend{"cpu", 0, 2, "static"};
  OpStep none;
  none.slots.resize(1);
  CheckPlan(backend, s, none);
  OpStep finished = none;
  finished.slots[0].pace = kPaceEnded;
  finished.rows = {{0, kDeviceKnows, 0, kRowSample}};
  const Planned p = RunPlan(backend, s, finished);
  CHECK(p.counts == std::vector<i32>(4, 0));
  s.max_rows = Plan::kMaxRows;
  s.max_tokens = 8192;
  s.max_outputs = 8192;
  RandomValues random(3);
  CheckPlan(backend, s, RandomStep(random, s.max_rows, s.max_tokens, 4000));
}

TEST_CASE("rows whose outputs do not fit get none, and nothing is written beyond") {
  PlanShape s;
  s.max_outputs = 5;
  OpStep step;
  step.slots.resize(3);
  step.rows = {{0, 3, 0, kRowAllLogits}, {1, 4, 0, kRowAllLogits}, {2, 1, 0, kRowSample}};
  const Planned p = RunPlan({"cpu", 0, 1, "static"}, s, step);
  CHECK(p.counts[kCountOutputs] == 3);
  CHECK(p.row_output[0] == 0);
  CHECK(p.row_output[1] == -1);
  CHECK(p.row_output[2] == -1);
  CHECK(p.output_token == std::vector<i32>{0, 1, 2, -1, -1});
}

}  // namespace
}  // namespace eventide
