#include "schedulers/scheduler.h"

#include "models/decoder.h"
#include "models/presets.h"
#include "schedulers/cost.h"
#include "stress/random_graph.h"
#include "tests/support/test.h"

namespace eventide {
namespace {

TEST_CASE("every scheduler gives every grid a policy and a reason") {
  for (const Scheduler& scheduler : Schedulers()) {
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      const absl::StatusOr<Program> program = Lower(RandomRuntimeGraph(seed));
      REQUIRE(program.ok());
      const absl::StatusOr<PolicyPlan> plan = Plan(*program, {3}, scheduler.name);
      REQUIRE(plan.ok());
      REQUIRE(plan->policy.size() == program->grids.size());
      for (size_t grid = 0; grid < program->grids.size(); ++grid) {
        CHECK(plan->policy[grid] <= kPolicyTicket);
        CHECK_FALSE(plan->reason[grid].empty());
        if (program->grids[grid].is_gate) CHECK(plan->policy[grid] == kPolicyStatic);
      }
    }
  }
}

TEST_CASE("auto takes tickets for grids whose size only the device knows, and for all on threads") {
  int tickets = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const absl::StatusOr<Program> program = Lower(RandomRuntimeGraph(seed));
    REQUIRE(program.ok());
    const absl::StatusOr<PolicyPlan> plan = Plan(*program, {2}, "auto");
    REQUIRE(plan.ok());
    for (size_t grid = 0; grid < program->grids.size(); ++grid) {
      const GridCost cost = CostOf(*program, static_cast<int>(grid));
      const bool ragged = !program->grids[grid].is_gate && cost.ragged && cost.max_tasks > 2;
      CHECK((plan->policy[grid] == kPolicyTicket) == ragged);
      tickets += ragged;
    }
    const absl::StatusOr<PolicyPlan> threads = Plan(*program, {2, /*preemptible=*/true}, "auto");
    for (size_t grid = 0; grid < program->grids.size(); ++grid) {
      const bool several = CostOf(*program, static_cast<int>(grid)).max_tasks > 1;
      CHECK((threads->policy[grid] == kPolicyTicket) == several);
    }
    const absl::StatusOr<PolicyPlan> alone = Plan(*program, {1, true}, "auto");
    for (const uint32_t policy : alone->policy) CHECK(policy == kPolicyStatic);
  }
  CHECK(tickets > 0);
}

TEST_CASE("experts' grids are static: the device decides how many tasks they have, not how long ones") {
  DecoderLimits limits;
  limits.num_blocks = 64;
  const auto decoder = BuildDecoder(*PresetConfig("qwen3-30b-a3b"), DType::kBF16, limits);
  REQUIRE(decoder.ok());
  const auto program = Lower(decoder->graph, DecoderVerifyOptions(*decoder));
  REQUIRE(program.ok());
  const auto plan = Plan(*program, {132}, "auto");
  REQUIRE(plan.ok());
  int experts = 0;
  for (size_t g = 0; g < program->grids.size(); ++g) {
    const ProgramGrid& grid = program->grids[g];
    INFO(grid.name << ": " << plan->reason[g]);
    if (grid.name == "attention") CHECK(plan->policy[g] == kPolicyTicket);
    if (grid.name != "gate_up" && grid.name != "down") continue;
    CHECK(plan->policy[g] == kPolicyStatic);
    CHECK(grid.device_extent);
    ++experts;
  }
  CHECK(experts == 2);
  // One expert's gate, factor and down projection are 9 MiB in bfloat16.
  for (size_t g = 0; g < program->grids.size(); ++g) {
    if (program->grids[g].name == "gate_up") {
      CHECK(CostOf(*program, static_cast<int>(g)).weight_bytes >= int64_t{128} * 6 << 20);
    }
  }
}

TEST_CASE("an unknown policy is an error that lists the known ones") {
  const absl::StatusOr<Program> program = Lower(RandomRuntimeGraph(1));
  REQUIRE(program.ok());
  const auto plan = Plan(*program, {2}, "magic");
  REQUIRE_FALSE(plan.ok());
  CHECK(std::string(plan.status().message()).find("auto, static, ticket") != std::string::npos);
}

}  // namespace
}  // namespace eventide
