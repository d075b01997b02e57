// A GPU that others use, too: multiprocessors held by a foreign kernel, of this process and of another one, and
// memory that another process has. Steps take longer or end with an error that says why, and later ones work.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <sstream>
#include <thread>

#include "tests/runtime/cuda_toys.h"
#include "tests/support/child.h"
#include "tests/support/gpu_holder.h"

namespace eventide {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

double MsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// The toy layers on a GPU, with their weights; one step has run.
struct Layers {
  explicit Layers(uint64_t timeout_ns) : weights(ToyWeights()) {
    CudaExecutorOptions options = ToyOptions();
    options.timeout_ns = timeout_ns;
    executor = Make(ToyLayersGraph(), options);
    const Buffer weight = executor->TensorBuffer(TensorNamed(executor->program(), "weight"));
    RequireOk(executor->Write(weight, 0, weights.data(), static_cast<int64_t>(weights.size() * 4)));
    Step(9);
  }
  void Step(int tokens) {
    RequireOk(executor->RunStep(HeaderFor(tokens)));
    CheckLayers(*executor, tokens, weights);
  }
  std::vector<uint32_t> weights;
  std::unique_ptr<CudaExecutor> executor;
};

TEST_CASE("a step waits for multiprocessors that another kernel holds, and is right") {
  if (!HaveGpu()) return;
  Layers layers(2'000'000'000);
  auto holder = GpuHolder::Open();
  INFO(holder.status());
  REQUIRE(holder.ok());
  const int all = (*holder)->multiprocessors();
  for (const int held : {all, all - 1, all / 2, 1}) {
    RequireOk((*holder)->Hold(held, milliseconds(400)));
    const auto start = Clock::now();
    layers.Step(kToyMaxTokens);
    const double ms = MsSince(start);
    std::cout << held << " of " << all << " multiprocessors held for 400 ms: the step took " << ms << " ms\n";
    CHECK(ms > 200);  // a worker for each of them
    CHECK(ms < 2000);
    layers.Step(9);
    RequireOk((*holder)->Release());
  }
}

// Workers that have started wait for those that could not: for longer than the step's timeout, that is an error.
// Where the GPU starts all workers at once or none, the step just takes longer.
TEST_CASE("a kernel that holds multiprocessors for longer than the timeout costs a step at most") {
  if (!HaveGpu()) return;
  Layers layers(300'000'000);
  auto holder = GpuHolder::Open();
  INFO(holder.status());
  REQUIRE(holder.ok());
  const int all = (*holder)->multiprocessors();
  for (const int held : {all, all / 2, 1}) {
    RequireOk((*holder)->Hold(held, milliseconds(1500)));
    const auto start = Clock::now();
    const absl::Status status = layers.executor->RunStep(HeaderFor(kToyMaxTokens));
    std::cout << held << " of " << all << " multiprocessors held for 1500 ms: after " << MsSince(start)
              << " ms " << status.ToString() << "\n";
    CHECK(MsSince(start) < 10000);
    if (status.ok()) {
      CheckLayers(*layers.executor, kToyMaxTokens, layers.weights);
    } else {
      CHECK(absl::IsDeadlineExceeded(status));
      CHECK(std::string(status.message()).find("timeout") != std::string::npos);
    }
    RequireOk((*holder)->Release());
    for (const int tokens : {9, kToyMaxTokens}) layers.Step(tokens);
  }
}

// This program again, as another process: what it is to do comes by its input.
struct Other : Child {
  explicit Other(const std::string& what)
      : Child({"[other]"}, Stderr::kDropped, std::filesystem::read_symlink("/proc/self/exe")) {
    Write(what + "\n");
  }
  // A process that may not use the GPU beside this one (exclusive mode) is no failure.
  bool Holds() {
    if (ReadUntil("holds it\n")) return true;
    Skip("no second process on this GPU: " + output());
    return false;
  }
  void End() {
    Write("end\n");
    CHECK(Wait() == 0);
  }
};

TEST_CASE("holds a GPU for another process's tests", "[.other]") {
  std::string line, what;
  std::getline(std::cin, line);
  std::istringstream words(line);
  int64_t amount = 0;
  words >> what >> amount;
  auto holder = GpuHolder::Open();
  absl::Status status = holder.status();
  if (status.ok() && what == "multiprocessors") {
    status = (*holder)->Hold((*holder)->multiprocessors(), milliseconds(amount));
  } else if (status.ok()) {
    status = (*holder)->TakeMemory(amount << 20).status();
  }
  std::cout << (status.ok() ? "holds it" : "cannot: " + status.ToString()) << std::endl;
  if (status.ok()) std::getline(std::cin, line);  // until it is told, or the other process is gone
}

TEST_CASE("steps are right while another process holds every multiprocessor") {
  if (!HaveGpu()) return;
  Layers layers(5'000'000'000);
  Other other("multiprocessors 3000");
  if (!other.Holds()) return;
  const auto start = Clock::now();
  int steps = 0;
  double longest = 0;
  while (MsSince(start) < 2000) {
    const auto began = Clock::now();
    layers.Step(++steps % (kToyMaxTokens + 1));
    longest = std::max(longest, MsSince(began));
  }
  std::cout << steps << " steps beside another process's kernel, the longest " << longest << " ms\n";
  other.End();
  const auto after = Clock::now();
  layers.Step(9);
  CHECK(MsSince(after) < 1000);
}

TEST_CASE("memory that another process has is told with what to lower, and can be had when it has ended") {
  if (!HaveGpu()) return;
  absl::StatusOr<Program> program = Lower(ToyLayersGraph());
  REQUIRE(program.ok());
  TensorDecl blocks = program->tensors[0];
  blocks.name = "blocks";
  blocks.role = TensorRole::kState;
  blocks.shape = {Expr(1 << 9), Expr(1 << 20)};  // 2 GiB
  program->tensors.push_back(blocks);
  Other other("memory 1536");
  if (!other.Holds()) return;
  const absl::Status status = MakeCudaExecutor(*program, ToyOptions()).status();
  std::cout << status.message() << "\n";
  CHECK(absl::IsResourceExhausted(status));
  for (const char* part : {"needs 20", "state such as KV blocks 2048", "MiB free", "lower --num-blocks", "end other"}) {
    INFO(part);
    CHECK(std::string(status.message()).find(part) != std::string::npos);
  }
  other.End();
  // The driver takes its time to give back what a process had.
  absl::Status later;
  for (int tries = 0; tries < 50; ++tries) {
    const auto executor = MakeCudaExecutor(*program, ToyOptions());
    later = executor.ok() ? (*executor)->RunStep(HeaderFor(9)) : executor.status();
    if (later.ok() || !absl::IsResourceExhausted(later)) break;
    std::this_thread::sleep_for(milliseconds(100));
  }
  INFO(later);
  CHECK(later.ok());
}

}  // namespace
}  // namespace eventide
