// serve_bench [STEPS]: what the host's part of a step costs, without a model: planning a batch,
// looking prefixes up and keeping all accounts, for decode at several batch sizes and for a queue
// of prompts that share a beginning. Prints microseconds a step; on a GPU they are hidden as long
// as they are shorter than its step.
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <deque>
#include <string>

#include "serve/engine.h"

namespace eventide {
namespace {

// Answers at once with the same token, so that all time is the engine's.
class NullRunner final : public StepRunner {
 public:
  explicit NullRunner(RunnerInfo info) : info_(std::move(info)) {}
  const RunnerInfo& info() const override { return info_; }
  absl::Status Admit(const SlotAdmission&) override { return absl::OkStatus(); }
  absl::Status Submit(const StepInput& input) override {
    StepOutcome outcome = {input.step, absl::OkStatus(), {}};
    for (const Row& row : input.rows) {
      RowResult result;
      result.slot = row.slot;
      result.query_length = row.query_length == kDeviceKnows ? 1 : row.query_length;
      if (row.sampling == kRowSample) result.tokens.push_back(1);
      outcome.rows.push_back(std::move(result));
    }
    queue_.push_back(std::move(outcome));
    return absl::OkStatus();
  }
  std::optional<StepOutcome> Poll() override {
    return queue_.empty() ? std::nullopt : std::optional(Wait());
  }
  StepOutcome Wait() override {
    StepOutcome outcome = std::move(queue_.front());
    queue_.pop_front();
    return outcome;
  }
  void Release(uint32_t) override {}

 private:
  RunnerInfo info_;
  std::deque<StepOutcome> queue_;
};

// Of this thread: a busy neighbour does not count.
double CpuMicroseconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return 1e6 * static_cast<double>(now.tv_sec) + 1e-3 * static_cast<double>(now.tv_nsec);
}

struct Case {
  const char* name;
  uint32_t running;  // decode rows
  uint32_t queued;   // requests behind them
  uint64_t prompt;   // tokens
  uint32_t slots;
};

void Measure(const Case& c, uint64_t steps) {
  RunnerInfo info;
  info.max_slots = c.slots;
  info.max_batched_tokens = 8192;
  info.max_model_len = c.prompt + 2 * steps + 100;
  info.num_blocks = uint64_t{c.running} * (info.max_model_len / 16 + 1) + c.prompt / 16 + 8;
  info.max_steps_in_flight = 2;
  info.vocab_size = 1000;
  NullRunner runner(info);
  SteadyClock clock;
  auto engine = Engine::Create(&runner, &clock, {});
  if (!engine.ok()) std::abort();
  const auto add = [&](uint32_t count, const char* prefix) {
    for (uint32_t i = 0; i < count; ++i) {
      Request request;
      request.id = prefix + std::to_string(i);
      request.prompt.assign(c.prompt, 7);  // all begin alike
      request.prompt[c.prompt / 2] = static_cast<TokenId>(i % 1000);
      request.sampling.max_tokens = static_cast<uint32_t>(2 * steps + 50);
      if (!(*engine)->AddRequest(std::move(request), nullptr).ok()) std::abort();
    }
  };
  add(c.running, "r");
  while ((*engine)->stats().output_tokens < c.running) {
    if (!(*engine)->Step().ok()) std::abort();
  }
  add(c.queued, "q");
  const double start = CpuMicroseconds();
  const uint64_t before = (*engine)->stats().steps;
  for (uint64_t i = 0; i < steps; ++i) {
    if (!(*engine)->Step().ok()) std::abort();
  }
  const double spent = CpuMicroseconds() - start;
  const EngineStats stats = (*engine)->stats();
  std::printf("%-52s %8.1f us a step, %llu running, %llu queued\n", c.name,
              spent / static_cast<double>(stats.steps - before),
              static_cast<unsigned long long>(stats.running),
              static_cast<unsigned long long>(stats.queued));
  (*engine)->CancelAll();
  (*engine)->Drain();
}

int Main(uint64_t steps) {
  const Case cases[] = {{"decode, batch 1", 1, 0, 512, 1},
                        {"decode, batch 64", 64, 0, 512, 64},
                        {"decode, batch 256", 256, 0, 512, 256},
                        {"decode, batch 1024", 1024, 0, 512, 1024},
                        {"decode, batch 64, context 8,192", 64, 0, 8192, 64},
                        {"decode, batch 64, 1,000 queued, no slot", 64, 1000, 512, 64},
                        {"decode, batch 64, 1,000 queued, KV blocks short", 64, 1000, 8192, 256}};
  for (const Case& c : cases) Measure(c, steps);
  return 0;
}

}  // namespace
}  // namespace eventide

int main(int argc, char** argv) {
  return eventide::Main(argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 2000);
}
