#include "stress/graph_case.h"

#include <cstring>

#include "runtime/cpu_executor.h"
#include "runtime/cuda_executor.h"
#include "runtime/sim_executor.h"
#include "schedulers/scheduler.h"
#include "stress/random_graph.h"

namespace eventide {
namespace {

// An executor of either kind; `sim` owns it on the simulator.
struct Tested {
  std::unique_ptr<Executor> owned;
  std::unique_ptr<SimExecutor> sim;
  Executor& executor() { return sim != nullptr ? sim->executor() : *owned; }
};

template <class Options>
Options OptionsFor(const StressCase& c) {
  Options options;
  options.workers = static_cast<int>(c.Get("workers", 1));
  options.policy = c.Get("policy") == 0 ? "static" : c.Get("policy") == 1 ? "ticket" : "auto";
  return options;
}

absl::StatusOr<Tested> MakeTested(Program program, const StressCase& c, const std::string& device) {
  Tested tested;
  if (device == "sim") {
    SimExecutorOptions options = OptionsFor<SimExecutorOptions>(c);
    options.pages = static_cast<int>(c.Get("pages", 12));
    ASSIGN_OR_RETURN(tested.sim, MakeSimExecutor(std::move(program), options));
  } else if (device == "cuda") {
    ASSIGN_OR_RETURN(tested.owned,
                     MakeCudaExecutor(std::move(program), OptionsFor<CudaExecutorOptions>(c)));
  } else {
    ASSIGN_OR_RETURN(tested.owned,
                     MakeCpuExecutor(std::move(program), OptionsFor<CpuExecutorOptions>(c)));
  }
  return tested;
}

}  // namespace

std::vector<std::vector<uint8_t>> TensorContents(Executor& executor) {
  std::vector<std::vector<uint8_t>> contents;
  for (size_t t = 0; t < executor.program().tensors.size(); ++t) {
    const Buffer buffer = executor.TensorBuffer(static_cast<int>(t));
    contents.emplace_back(static_cast<size_t>(buffer.bytes));
    EVT_CHECK(executor.Read(buffer, 0, contents.back().data(), buffer.bytes).ok());
  }
  return contents;
}

void FillTensors(Executor& executor, uint64_t salt) {
  for (size_t t = 0; t < executor.program().tensors.size(); ++t) {
    const Buffer buffer = executor.TensorBuffer(static_cast<int>(t));
    const TensorRole role = executor.program().tensors[t].role;
    std::vector<uint8_t> bytes(static_cast<size_t>(buffer.bytes), 0xff);
    if (role == TensorRole::kWeight || role == TensorRole::kInput) {
      for (size_t i = 0; i < bytes.size(); ++i)
        bytes[i] = static_cast<uint8_t>((i * 0x9e3779b1u + (t + salt) * 0x85ebca6bu) >> 13);
    }
    EVT_CHECK(executor.Write(buffer, 0, bytes.data(), buffer.bytes).ok());
  }
}

namespace {

// The first difference in words, or nothing.
std::string Difference(const Program& program, const std::vector<std::vector<uint8_t>>& expected,
                       const std::vector<std::vector<uint8_t>>& seen) {
  for (size_t t = 0; t < expected.size(); ++t) {
    if (expected[t] == seen[t]) continue;
    size_t at = 0;
    while (expected[t][at] == seen[t][at]) ++at;
    return absl::StrCat("tensor ", program.tensors[t].name, " differs from byte ", at, " of ",
                        expected[t].size(), " on: ", seen[t][at], " instead of ", expected[t][at]);
  }
  return "";
}

}  // namespace

StressCase RandomGraphCase(StressRandom* random, const std::string& device) {
  StressCase c("graph");
  c.Set("seed", random->Below(1'000'000));
  c.Set("a", random->Chance(30) ? 0 : random->Below(kRuntimeSymbolMax[0] + 1));
  c.Set("b", random->Chance(30) ? 0 : random->Below(kRuntimeSymbolMax[1] + 1));
  c.Set("policy", random->Below(3));
  c.Set("salt", random->Below(1000));
  if (device == "sim") {
    c.Set("workers", random->Between(1, 6));
    c.Set("pages", random->Between(4, 8));
    c.Set("schedule", random->Below(1'000'000'000));
    c.Set("tries", 20);
  } else {
    c.Set("workers", device == "cuda" ? random->OneOf({0, 1, 2, 3, 72})
                                      : random->OneOf({1, 2, 3, 7, 72, 132}));
    c.Set("tries", c.Get("workers") > 7 ? 3 : 10);
  }
  return c;
}

StressOutcome RunGraphCase(const StressCase& c, StressContext* context) {
  absl::StatusOr<Program> program = Lower(RandomRuntimeGraph(static_cast<uint64_t>(c.Get("seed"))));
  if (!program.ok()) return StressOutcome::Invalid(std::string(program.status().message()));
  CpuExecutorOptions plain;
  plain.workers = 1;
  plain.isa = kCpuPortable;
  auto reference = MakeCpuExecutor(*program, plain);
  if (!reference.ok()) return StressOutcome::Invalid(std::string(reference.status().message()));
  if (context->faults().program) context->faults().program(&*program);
  auto tested = MakeTested(*std::move(program), c, context->device());
  if (!tested.ok()) return StressOutcome::Invalid(std::string(tested.status().message()));
  StepHeader header = {};
  header.symbols[0] = static_cast<int32_t>(c.Get("a"));
  header.symbols[1] = static_cast<int32_t>(c.Get("b"));
  const uint64_t salt = static_cast<uint64_t>(c.Get("salt"));
  FillTensors(**reference, salt);
  if (const absl::Status status = (*reference)->RunStep(header); !status.ok()) {
    return StressOutcome::Invalid(std::string(status.message()));
  }
  const auto expected = TensorContents(**reference);
  Executor& executor = tested->executor();
  const uint64_t compilations = CountBackends().compilations;
  StressOutcome outcome;
  outcome.shapes = 1;
  for (int64_t i = 0; i < std::max<int64_t>(1, c.Get("tries", 1)); ++i) {
    const int64_t schedule = c.Get("schedule") + i;
    const std::string where =
        tested->sim != nullptr ? absl::StrCat("schedule ", schedule, ": ") : "";
    if (tested->sim != nullptr) tested->sim->SetSeed(static_cast<uint64_t>(schedule));
    FillTensors(executor, salt);
    const absl::Status status = executor.RunStep(header);
    ++outcome.steps;
    if (!status.ok()) {
      outcome.Fail(absl::IsDeadlineExceeded(status) ? "stuck" : "error",
                   where + std::string(status.message()));
    } else if (const std::string what =
                   Difference(executor.program(), expected, TensorContents(executor));
               !what.empty()) {
      outcome.Fail("wrong values", where + what);
    }
    if (outcome.verdict == StressOutcome::Verdict::kFailed) break;
  }
  outcome.compilations_after_ready = CountBackends().compilations - compilations;
  return outcome;
}

}  // namespace eventide
