// Whole launches of toy graphs on a GPU, against plain results computed here.
#include <algorithm>
#include <chrono>
#include <iostream>
#include <thread>

#include "tests/runtime/cuda_toys.h"

namespace eventide {
namespace {

TEST_CASE("layers with streamed weights give the plain result for every number of tokens") {
  if (!HaveGpu()) return;
  const std::vector<uint32_t> weights = ToyWeights();
  for (const int workers : {0, 1, 2, 7}) {
    CudaExecutorOptions options = ToyOptions();
    options.workers = workers;
    PhaseLog log;
    options.phases = &log;
    const auto executor = Make(ToyLayersGraph(), options);
    const CudaReport& report = executor->report();
    std::cout << report.gpu << ", " << executor->workers() << " workers, "
              << (report.compiled ? "cold" : "cached");
    for (const Phase& phase : log.phases())
      std::cout << ", " << phase.name << " " << phase.ms << " ms";
    std::cout << "\n";
    CHECK(log.phases().size() == 5);  // device, generate, nvrtc, module_load, kv_alloc
    const Buffer weight = executor->TensorBuffer(TensorNamed(executor->program(), "weight"));
    RequireOk(executor->Write(weight, 0, weights.data(), static_cast<int64_t>(weights.size() * 4)));
    const Buffer x = executor->TensorBuffer(TensorNamed(executor->program(), "x"));
    for (int tokens = 0; tokens <= kToyMaxTokens; tokens += tokens < 10 ? 1 : 9) {
      RequireOk(executor->Fill(x, 0, 0xee, x.bytes));
      RequireOk(executor->RunStep(HeaderFor(tokens)));
      CheckLayers(*executor, tokens, weights);
    }
  }
}

TEST_CASE("extents that only the device knows, zero included, are followed without the host") {
  if (!HaveGpu()) return;
  int empty = 0;
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    if (ToyHash(seed, 0) % kToyLimit != 0 && seed % 12 != 0) continue;
    empty += ToyHash(seed, 0) % kToyLimit == 0;
    for (const char* policy : {"static", "ticket"}) {
      CudaExecutorOptions options = ToyOptions();
      options.policy = policy;
      const auto executor = Make(ToyCountGraph(seed), options);
      const Buffer total = executor->TensorBuffer(TensorNamed(executor->program(), "total"));
      for (const int tokens : {1, 8, 9, 64}) {
        RequireOk(executor->Fill(total, 0, 0xee, total.bytes));
        RequireOk(executor->RunStep(HeaderFor(tokens)));
        uint32_t got = 0;
        RequireOk(executor->Read(total, 0, &got, 4));
        INFO("seed " << seed << ", tokens " << tokens << ", policy " << policy);
        CHECK(got == ToyCountExpected(seed));
      }
    }
  }
  std::cout << empty << " graphs had an empty grid\n";
}

TEST_CASE("a thousand steps, two in flight, use both counter banks and stay right") {
  if (!HaveGpu()) return;
  const std::vector<uint32_t> weights = ToyWeights();
  const auto executor = Make(ToyLayersGraph(), ToyOptions());
  const Buffer weight = executor->TensorBuffer(TensorNamed(executor->program(), "weight"));
  RequireOk(executor->Write(weight, 0, weights.data(), static_cast<int64_t>(weights.size() * 4)));
  const auto start = std::chrono::steady_clock::now();
  constexpr int kSteps = 1000;
  for (int step = 0; step < kSteps; ++step) {
    RequireOk(executor->Submit(HeaderFor(step * 7 % (kToyMaxTokens + 1))));
    if (step > 0) RequireOk(executor->Wait());
  }
  RequireOk(executor->Wait());
  const double us =
      std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
  std::cout << us / kSteps << " us per step, the last one " << 1e3 * executor->LastStepMs()
            << " us on the GPU\n";
  CheckLayers(*executor, (kSteps - 1) * 7 % (kToyMaxTokens + 1), weights);
  CHECK_FALSE(executor->Wait().ok());
}

TEST_CASE("the gap before a step is the time since the end of the one before it, by the GPU's clock") {
  if (!HaveGpu()) return;
  const auto executor = Make(ToyLayersGraph(), ToyOptions());
  RequireOk(executor->RunStep(HeaderFor(9)));
  CHECK(executor->LastGapMs() < 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  RequireOk(executor->RunStep(HeaderFor(9)));
  CHECK(executor->LastGapMs() > 15);
  CHECK(executor->LastGapMs() < 1000);
  // One behind the other, always one queued: no host comes between.
  RequireOk(executor->Submit(HeaderFor(9)));
  std::vector<double> gaps;
  for (int step = 0; step < 200; ++step) {
    RequireOk(executor->Submit(HeaderFor(9)));
    RequireOk(executor->Wait());
    if (step > 0) gaps.push_back(executor->LastGapMs());
  }
  RequireOk(executor->Wait());
  std::sort(gaps.begin(), gaps.end());
  std::cout << "gap of queued steps: median " << 1e3 * gaps[gaps.size() / 2] << " us, most "
            << 1e3 * gaps.back() << " us\n";
  CHECK(gaps.front() >= 0);
  CHECK(gaps[gaps.size() / 2] < 0.1);
}

// A wait that nothing fulfils: Verify would refuse the graph, so the fault is put into the program.
TEST_CASE("a stuck step ends with an error that names the event, and the next step works") {
  if (!HaveGpu()) return;
  absl::StatusOr<Program> program = Lower(ToyCountGraph());
  REQUIRE(program.ok());
  // The symbol decides: with 64 tokens "filled" needs one arrival more than there are tasks.
  ProgramEvent& filled = program->events[0];
  REQUIRE(filled.name == "filled");
  filled.target = filled.target + FloorDiv(Expr::Symbol(0), Expr(kToyMaxTokens));
  CudaExecutorOptions options = ToyOptions();
  options.timeout_ns = 200'000'000;
  auto executor = MakeCudaExecutor(*std::move(program), options);
  INFO(executor.status().ToString());
  REQUIRE(executor.ok());
  for (int round = 0; round < 3; ++round) {
    const absl::Status stuck = (*executor)->RunStep(HeaderFor(kToyMaxTokens));
    INFO(stuck.ToString());
    if (round == 0) std::cout << stuck.ToString() << "\n";
    CHECK(stuck.code() == absl::StatusCode::kDeadlineExceeded);
    CHECK(std::string(stuck.message()).find("filled[") != std::string::npos);
    CHECK(std::string(stuck.message()).find("count") != std::string::npos);
    for (const int tokens : {1, 9}) {
      RequireOk((*executor)->RunStep(HeaderFor(tokens)));
      uint32_t got = 0;
      const Buffer total = (*executor)->TensorBuffer(TensorNamed((*executor)->program(), "total"));
      RequireOk((*executor)->Read(total, 0, &got, 4));
      CHECK(got == ToyCountExpected());
    }
  }
  // With another step queued behind the stuck one, both fail and the third works.
  RequireOk((*executor)->Submit(HeaderFor(kToyMaxTokens)));
  RequireOk((*executor)->Submit(HeaderFor(9)));
  CHECK_FALSE((*executor)->Wait().ok());
  const absl::Status behind = (*executor)->Wait();
  CHECK(std::string(behind.message()).find("before this one") != std::string::npos);
  RequireOk((*executor)->RunStep(HeaderFor(9)));
}

// Behind the fault whole layers wait; whichever worker gives up first, the oldest task is told.
TEST_CASE("a stuck step's error is of the oldest task that waits, not of one behind it") {
  if (!HaveGpu()) return;
  const std::vector<uint32_t> weights = ToyWeights();
  for (const int workers : {0, 1, 7}) {
    absl::StatusOr<Program> program = Lower(ToyLayersGraph());
    REQUIRE(program.ok());
    ProgramEvent& ready = program->events[0];
    REQUIRE(ready.name == "ready");
    // ready[1, 2] wants one arrival more than there are.
    const Expr layer = Expr::Coord(0), tile = Expr::Coord(1);
    const auto is = [](const Expr& e, int value) {
      return Expr(1) - Min(Max(e, Expr(value)) - Min(e, Expr(value)), Expr(1));
    };
    ready.target = ready.target + Min(is(layer, 1), is(tile, 2));
    CudaExecutorOptions options = ToyOptions();
    options.workers = workers;
    options.timeout_ns = 200'000'000;
    auto executor = MakeCudaExecutor(*std::move(program), options);
    INFO(executor.status().ToString());
    REQUIRE(executor.ok());
    for (int round = 0; round < 5; ++round) {
      const absl::Status stuck = (*executor)->RunStep(HeaderFor(kToyMaxTokens));
      INFO(stuck.ToString());
      if (round == 0) std::cout << stuck.ToString() << "\n";
      CHECK(absl::IsDeadlineExceeded(stuck));
      const std::string text(stuck.message());
      CHECK(text.find("(input) at mix, layer 1, task (2, 0) waited for event ready[1, 2]") !=
            std::string::npos);
      // Two tiles of tokens have no fault; the bank is clean again.
      RequireOk((*executor)->Write(
          (*executor)->TensorBuffer(TensorNamed((*executor)->program(), "weight")), 0,
          weights.data(), static_cast<int64_t>(weights.size() * 4)));
      RequireOk((*executor)->RunStep(HeaderFor(16)));
      CheckLayers(**executor, 16, weights);
    }
  }
}

// Two executors on one stream, many launches of one in a step: what a draft model and its target are.
TEST_CASE("two executors take turns on one device's stream, and launches submitted together are one step") {
  if (!HaveGpu()) return;
  const std::vector<uint32_t> weights = ToyWeights();
  const auto first = Make(ToyLayersGraph(), ToyOptions());
  CudaExecutorOptions options = ToyOptions();
  options.shared = first->device();
  auto second = Make(ToyLayersGraph(), options);
  for (Executor* executor : {static_cast<Executor*>(first.get()), static_cast<Executor*>(second.get())}) {
    const Buffer weight = executor->TensorBuffer(TensorNamed(executor->program(), "weight"));
    RequireOk(executor->Write(weight, 0, weights.data(), static_cast<int64_t>(weights.size() * 4)));
  }
  const std::vector<StepHeader> many = {HeaderFor(9), HeaderFor(1), HeaderFor(64), HeaderFor(2),
                                        HeaderFor(33)};
  for (int round = 0; round < 20; ++round) {
    for (int flight = 0; flight < 2; ++flight) {
      RequireOk(second->SubmitAll(many));
      RequireOk(first->Submit(HeaderFor(17)));
    }
    CHECK(second->SubmitAll(many).code() == absl::StatusCode::kFailedPrecondition);
    for (int flight = 0; flight < 2; ++flight) {
      RequireOk(first->Wait());
      // What was submitted before it has run.
      const absl::StatusOr<bool> done = second->Done();
      CHECK((done.ok() && *done));
      RequireOk(second->Wait());
      CHECK(second->LastStepMs() > 0);
    }
    CHECK(second->Wait().code() == absl::StatusCode::kFailedPrecondition);
    CheckLayers(*first, 17, weights);
    CheckLayers(*second, 33, weights);
  }
  second.reset();
  RequireOk(first->RunStep(HeaderFor(5)));
}

TEST_CASE("copies of all sizes arrive, and results are read without waiting for the next step") {
  if (!HaveGpu()) return;
  const auto executor = Make(ToyCountGraph(), ToyOptions());
  for (const int64_t bytes : {1, 255, 4096, (8 << 20) - 3, (33 << 20) + 17}) {
    const absl::StatusOr<Buffer> buffer = executor->AllocateBuffer(bytes);
    REQUIRE(buffer.ok());
    std::vector<uint8_t> data(bytes), back(bytes);
    RequireOk(executor->Read(*buffer, 0, back.data(), bytes));
    CHECK(back == data);  // zero at first
    for (int64_t i = 0; i < bytes; ++i) data[i] = static_cast<uint8_t>(i * 31 + i / 256);
    RequireOk(executor->Write(*buffer, 0, data.data(), bytes));
    RequireOk(executor->Read(*buffer, 0, back.data(), bytes));
    CHECK(back == data);
    CHECK(executor->Write(*buffer, 1, data.data(), bytes).code() == absl::StatusCode::kOutOfRange);
  }
  const absl::StatusOr<Buffer> results = executor->AllocateResults(64);
  REQUIRE(results.ok());
  uint32_t word = 1;
  RequireOk(executor->Read(*results, 0, &word, 4));
  CHECK(word == 0);
}

TEST_CASE("impossible numbers of workers and devices are refused with what is possible") {
  if (!HaveGpu()) return;
  absl::StatusOr<Program> program = Lower(ToyCountGraph());
  REQUIRE(program.ok());
  CudaExecutorOptions options = ToyOptions();
  options.workers = 100000;
  const absl::Status many = MakeCudaExecutor(*program, options).status();
  CHECK(many.code() == absl::StatusCode::kInvalidArgument);
  CHECK(std::string(many.message()).find("at once") != std::string::npos);
  options.workers = 0;
  options.device = 99;
  CHECK(MakeCudaExecutor(*program, options).status().code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("a symbol outside its range is refused before anything is launched") {
  if (!HaveGpu()) return;
  const auto executor = Make(ToyCountGraph(), ToyOptions());
  CHECK(executor->Submit(HeaderFor(kToyMaxTokens + 1)).code() ==
        absl::StatusCode::kInvalidArgument);
  CHECK(executor->Submit(HeaderFor(0)).code() == absl::StatusCode::kInvalidArgument);
  RequireOk(executor->RunStep(HeaderFor(1)));
}

}  // namespace
}  // namespace eventide
