// Timing, recording and measuring on a GPU.
#include <iostream>
#include <map>

#include "device/pages.h"
#include "models/load.h"
#include "runtime/chrome_trace.h"
#include "runtime/cuda_probe.h"
#include "runtime/timeline_report.h"
#include "serve/step_bench.h"
#include "tests/support/gpu.h"
#include "tests/support/test.h"

namespace eventide {
namespace {

std::unique_ptr<StepBench> MakeBench(int timeline_tasks, StepShape shape,
                                     const std::string& policy) {
  auto source = OpenModel("random:test-llama@3");
  REQUIRE(source.ok());
  StepBenchOptions options;
  options.backend.device = "cuda";
  options.backend.policy = policy;
  options.backend.time_steps = true;
  options.backend.timeline_tasks = timeline_tasks;
  options.storage = DType::kBF16;
  options.shapes = {shape};
  auto bench = StepBench::Create(**source, options);
  INFO(bench.status());
  REQUIRE(bench.ok());
  return std::move(*bench);
}

TEST_CASE("on a GPU, recording changes no token and every role tells its tasks") {
  if (!HaveGpu()) return;
  const std::string policy = GENERATE(as<std::string>(), "static", "ticket");
  const StepShape shape = {5, 300};
  const auto plain = MakeBench(0, shape, policy);
  const auto recorded = MakeBench(4096, shape, policy);
  for (int i = 0; i < 3; ++i) {
    const auto times = plain->Measure(shape, {2, i});
    INFO(times.status());
    REQUIRE(times.ok());
    CHECK(times->ms.p50 > 0);
    REQUIRE(recorded->Measure(shape, {2, i}).ok());
    CHECK(plain->last_tokens() == recorded->last_tokens());
  }
  const auto timeline = recorded->LastTimeline();
  INFO(timeline.status());
  REQUIRE(timeline.ok());
  Executor& executor = recorded->runner().executor();
  CHECK(timeline->roles.size() == static_cast<size_t>(executor.workers()) * kRoles);
  const Program& program = executor.program();
  std::map<std::string, int> input, compute;
  int64_t streamed = 0;
  for (const TimelineTask& task : timeline->tasks) {
    const TimelineRecord& r = task.record;
    CHECK(r.start_ns <= r.wait_end_ns);
    CHECK(r.wait_end_ns <= r.end_ns);
    if (program.grids[r.grid].is_gate) continue;
    const std::string& name = program.grids[r.grid].name;
    if (task.role == kRoleInput) ++input[name];
    if (task.role == kRoleCompute) ++compute[name];
    if (task.role == kRoleStream) streamed += r.bytes;
  }
  CHECK(input == compute);
  CHECK(compute["sample"] == 2 * shape.batch);  // of each row its output, and its end, where nothing is left to do
  // Weights, padded to whole tiles, and KV in whole pages.
  CHECK(streamed >= StepWeightBytes(recorded->runner().decoder().config, DType::kBF16));
  CHECK(timeline->hops.size() > 0);
  const auto report = ReportTimeline(
      nlohmann::ordered_json::parse(ChromeTrace(*timeline, program, {{"policy", policy}})));
  REQUIRE(report.ok());
  std::cout << ToText(*report);
  // One copy in some is looked at, of so small a model perhaps none that still waits; never more than all pages.
  CHECK(report->in_flight_bytes <= kMaxPages * double{kPageBytes});
}

TEST_CASE("the card's own figures are of a sane size") {
  if (!HaveGpu()) return;
  auto probe = CudaProbe::Open();
  INFO(probe.status());
  REQUIRE(probe.ok());
  const auto gbps = (*probe)->ReadGbps(4);
  INFO(gbps.status());
  REQUIRE(gbps.ok());
  CHECK(*gbps > 50);
  CHECK(*gbps < 50000);
  const auto sync = (*probe)->Sync();
  INFO(sync.status());
  REQUIRE(sync.ok());
  std::cout << (*probe)->gpu() << ": " << *gbps << " GB/s, hop " << sync->hop_us << " us, ticket "
            << sync->ticket_us << " / " << sync->ticket_contended_us << " us, page "
            << sync->page_ns << " / " << sync->page_contended_ns << " ns, barrier "
            << sync->barrier_us << " us\n";
  for (const double us : {sync->hop_us, sync->ticket_us, sync->ticket_contended_us,
                          sync->page_ns / 1e3, sync->page_contended_ns / 1e3, sync->barrier_us}) {
    CHECK(us > 0.001);
    CHECK(us < 100);
  }
  CHECK(sync->hop_us_min <= sync->hop_us);
  CHECK(sync->hop_us <= sync->hop_us_max);
}

}  // namespace
}  // namespace eventide
