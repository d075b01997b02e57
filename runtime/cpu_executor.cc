#include "runtime/cpu_executor.h"

#include <algorithm>
#include <thread>

#include "absl/strings/str_format.h"
#include "runtime/evaluated_program.h"
#include "runtime/host_memory.h"
#include "runtime/ops.h"
#include "runtime/worker_threads.h"

namespace eventide {
namespace {

constexpr int kMaxCpuWorkers = 1024;

std::unique_ptr<CpuWorkerBase> MakeWorker(int isa);

// The same program, recording a timeline.
struct RecordedProgram : RunnableProgram<CpuWorkerBase> {
  using RunnableProgram::RunnableProgram;
  static constexpr bool kTimeline = true;
};

// Workers of the instruction set whose ops will be called with them. unique_ptr<Base> needs the
// right destructor: a CpuWorker adds no members, so the deleter is the base's.
template <int kIsa>
std::unique_ptr<CpuWorkerBase> MakeWorkerOf() {
  static_assert(sizeof(CpuWorker<kIsa>) == sizeof(CpuWorkerBase));
  return std::make_unique<CpuWorker<kIsa>>();
}

std::unique_ptr<CpuWorkerBase> MakeWorker(int isa) {
  switch (isa) {
    case kCpuV4:
      return MakeWorkerOf<kCpuV4>();
    case kCpuV3:
      return MakeWorkerOf<kCpuV3>();
    default:
      return MakeWorkerOf<kCpuPortable>();
  }
}

class CpuExecutor : public HostExecutor {
 public:
  absl::Status Start(Program program, const CpuExecutorOptions& options, int workers, int isa) {
    RETURN_IF_ERROR(Setup(std::move(program), options, {.workers = workers, .preemptible = true}));
    {
      const PhaseSpan span(options.phases, "generate");
      runnable_ = std::make_unique<RecordedProgram>(*program_, nodes_, addresses_);
      RETURN_IF_ERROR(runnable_->Bind(options.ops != nullptr ? *options.ops : CpuOps(isa)));
    }
    const PhaseSpan span(options.phases, "device");
    record_.nodes = reinterpret_cast<uint64_t>(runnable_->nodes().data());
    for (int i = 0; i < workers; ++i) {
      workers_.push_back(MakeWorker(isa));
      CpuWorkerBase& worker = *workers_.back();
      worker.worker = static_cast<uint32_t>(i);
      worker.workers = static_cast<uint32_t>(workers);
      worker.program = &record_;
      worker.waiting = {&Relax, &Now, this};
    }
    threads_ = std::make_unique<WorkerThreads>(workers, [this](int worker) { RunWorker(worker); });
    return absl::OkStatus();
  }

 protected:
  absl::Status RunWorkers(const StepHeader& header, const StepView& view) override {
    header_ = &header;
    view_ = &view;
    threads_->RunAll();
    return runnable_->TakeFault();
  }
  void EvaluateDims(StepView& view) const override { runnable_->EvaluateDims(view); }

 private:
  static void Relax(void* self, u32 attempt) {
    RelaxWorker(static_cast<CpuExecutor*>(self)->threads_->crowded(), attempt);
  }
  static u64 Now() { return NowNs(); }

  void RunWorker(int index) {
    CpuWorkerBase& worker = *workers_[index];
    worker.step = *view_;
    worker.StartStep();
    ClearSlice(header_->bank, index);
    if (record_.timeline == 0) {
      RunSequential<RunnableProgram<CpuWorkerBase>>(*runnable_, worker);
      return;
    }
    worker.TimeStep();
    RunSequential<RecordedProgram>(*runnable_, worker);
    worker.TimeStepEnd();
  }

  std::unique_ptr<RecordedProgram> runnable_;
  std::vector<std::unique_ptr<CpuWorkerBase>> workers_;
  const StepHeader* header_ = nullptr;
  const StepView* view_ = nullptr;
  std::unique_ptr<WorkerThreads> threads_;  // last: joined before what the workers use goes away
};

}  // namespace

absl::StatusOr<std::unique_ptr<Executor>> MakeCpuExecutor(Program program,
                                                          const CpuExecutorOptions& options) {
  if (options.workers < 0 || options.workers > kMaxCpuWorkers) {
    return absl::InvalidArgumentError(absl::StrFormat("%d workers: between 1 and %d are possible",
                                                      options.workers, kMaxCpuWorkers));
  }
  const int best = BestCpuIsa();
  const int isa =
      options.isa < 0 ? (options.ops != nullptr ? int{kCpuPortable} : best) : options.isa;
  if (isa > best) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "this processor lacks the instruction set %d; the best it has is %d", isa, best));
  }
  const int workers = options.workers > 0
                          ? options.workers
                          : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  auto executor = std::make_unique<CpuExecutor>();
  RETURN_IF_ERROR(executor->Start(std::move(program), options, workers, isa));
  return executor;
}

}  // namespace eventide
