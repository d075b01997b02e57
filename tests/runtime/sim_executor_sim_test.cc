#include "runtime/sim_executor.h"
#include "tests/support/planted.h"
#include "tests/support/sim_campaign.h"
#include "tests/support/test.h"

namespace eventide {
namespace {

const SimOpTable& Ops() {
  static const SimOpTable table = RuntimeTestOps<SimWorker, SimWorker>();
  return table;
}

TEST_CASE("random graphs under random schedules never deadlock and never differ from one worker") {
  const CampaignResult result = RunCampaign(1, 300, 100, 20);
  INFO(result.first);
  CHECK(result.schedules == 30'000);
  CHECK(result.deadlocks == 0);
  CHECK(result.wrong_values == 0);
  CHECK(result.other_errors == 0);
  CHECK(result.refused == 0);
}

TEST_CASE("one page lane without floors deadlocks, and the simulator says who waits for what") {
  SimControls controls;
  controls.one_page_lane = true;
  const CampaignResult result = RunCampaign(1, 10, 20, 20, controls);
  CHECK(result.deadlocks > 20);
  CHECK(result.first.find("deadlock: nobody can run") != std::string::npos);
  CHECK(result.first.find("waits for a page of the input lane (0 free") != std::string::npos);
}

TEST_CASE("taking a task's pages before waiting for its events deadlocks") {
  SimControls controls;
  controls.one_page_lane = true;
  controls.reserve_then_wait = true;
  CHECK(RunCampaign(1, 10, 20, 20, controls).deadlocks > 20);
}

TEST_CASE("events that are open at once when their producers are empty give wrong values") {
  SimControls controls;
  controls.zero_is_open = true;
  const CampaignResult result = RunCampaign(1, 80, 100, 20, controls);
  CHECK(result.wrong_values + result.other_errors > 0);
}

TEST_CASE("a seed is a schedule: equal seeds give equal traces, others differ") {
  const absl::StatusOr<Program> program = Lower(RandomRuntimeGraph(3));
  REQUIRE(program.ok());
  SimExecutorOptions options;
  options.ops = &Ops();
  options.workers = 3;
  auto sim = MakeSimExecutor(*program, options);
  REQUIRE(sim.ok());
  StepHeader header = {};
  header.symbols[0] = 5;
  header.symbols[1] = 3;
  const auto run = [&](uint64_t seed) {
    (*sim)->SetSeed(seed);
    const absl::Status status = (*sim)->executor().RunStep(header);
    INFO(status);
    REQUIRE(status.ok());
    return (*sim)->trace().hash;
  };
  const uint64_t first = run(7), other = run(8);
  CHECK(run(7) == first);
  CHECK(other != first);
}

TEST_CASE("a missing notify is found as a deadlock at once, and the next step works") {
  const PlantedProgram planted = MissingNotify();
  SimExecutorOptions options;
  options.ops = &Ops();
  options.workers = 3;
  auto sim = MakeSimExecutor(planted.program, options);
  REQUIRE(sim.ok());
  StepHeader header = {};
  header.symbols[0] = 4;
  for (const int present : {1, 0, 1, 0, 1}) {
    header.symbols[1] = present;
    const absl::Status status = (*sim)->executor().RunStep(header);
    INFO(status);
    CHECK(status.ok() == (present == 1));
    if (present == 0)
      CHECK(std::string(status.message()).find("y_done[0] (0 of 4") != std::string::npos);
  }
}

TEST_CASE("floors above the pool are refused by name before anything runs") {
  const absl::StatusOr<Program> program = Lower(RandomRuntimeGraph(3));
  REQUIRE(program.ok());
  SimExecutorOptions options;
  options.ops = &Ops();
  options.pages = 2;
  const auto sim = MakeSimExecutor(*program, options);
  REQUIRE_FALSE(sim.ok());
  CHECK(std::string(sim.status().message()).find("needs 2 pages to stream") != std::string::npos);
}

}  // namespace
}  // namespace eventide
