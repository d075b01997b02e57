// decoder_under_tsan [early-exit:|early-exit-moe:]shipped|forgetful|LIBRARY POLICY WORKERS: a small decoder's
// steps on threads in a program built with ThreadSanitizer (tests/CMakeLists.txt), which reports and exits with
// another status if an order is missing anywhere. Wrong values: exit 3.
//
//   shipped    the CPU backend
//   forgetful  its worker loop with notifies that do not release: a fault that must be reported
//   LIBRARY    a generated program, compiled by the caller; "source" in its place prints one
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <type_traits>

#include "jit/codegen.h"
#include "runtime/evaluated_program.h"
#include "runtime/host_memory.h"
#include "runtime/ops.h"
#include "runtime/worker_threads.h"
#include "tests/support/decoder_rig.h"

namespace eventide {
namespace {

using PortableWorker = CpuWorker<kCpuPortable>;

// The fault: on x86 the machine orders the stores all the same, so that values are right.
struct ForgetfulWorker : PortableWorker {
  template <class P>
  void Notify(const P& p, const ElementBox& box) {
    const i32 size = box.size();
    for (i32 k = 0; k < size; ++k) {
      i32 index[kMaxEventDims];
      box.Index(k, index);
      DirectSync::FetchAddRelaxed(
          CounterAt(*program, step.header->bank, p.Element(box.event, index)), 1);
    }
  }
  template <class P>
  void Done(const P& p, const TaskName& done) {
    NotifyTask(p, *this, done.grid, done.at);
    Finished();
  }
};

// Threads that run workers of type W with a loop given from outside.
template <class W>
class ThreadsExecutor : public HostExecutor {
 public:
  using Loop = std::function<void(const RunnableProgram<CpuWorkerBase>&, W&)>;

  absl::Status Start(Program program, const ExecutorOptions& options, Loop loop) {
    RETURN_IF_ERROR(
        Setup(std::move(program), options, {.workers = options.workers, .preemptible = true}));
    runnable_ = std::make_unique<RunnableProgram<CpuWorkerBase>>(*program_, nodes_, addresses_);
    RETURN_IF_ERROR(runnable_->Bind(CpuOps(kCpuPortable)));
    record_.nodes = reinterpret_cast<uint64_t>(runnable_->nodes().data());
    loop_ = std::move(loop);
    for (int i = 0; i < options.workers; ++i) {
      workers_.push_back(std::make_unique<W>());
      W& worker = *workers_.back();
      worker.worker = static_cast<uint32_t>(i);
      worker.workers = static_cast<uint32_t>(options.workers);
      worker.program = &record_;
      worker.waiting = {[](void*, u32 attempt) { RelaxWorker(true, attempt); },
                        []() -> u64 { return NowNs(); }, nullptr};
    }
    threads_ = std::make_unique<WorkerThreads>(options.workers, [this](int i) { RunWorker(i); });
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
  void RunWorker(int index) {
    W& worker = *workers_[static_cast<size_t>(index)];
    worker.step = *view_;
    worker.StartStep();
    ClearSlice(header_->bank, index);
    loop_(*runnable_, worker);
  }

  std::unique_ptr<RunnableProgram<CpuWorkerBase>> runnable_;
  Loop loop_;
  std::vector<std::unique_ptr<W>> workers_;
  const StepHeader* header_ = nullptr;
  const StepView* view_ = nullptr;
  std::unique_ptr<WorkerThreads> threads_;
};

int RunSteps(const Decoder& decoder, const std::vector<RecordedStep>& steps, Executor* executor) {
  DecoderRig rig(decoder, executor);
  rig.Put(steps[0].before);
  for (const RecordedStep& step : steps) {
    rig.Poison();
    DecoderOutputs outputs;
    const absl::Status status = rig.Step(step.rows, &outputs);
    if (!status.ok() || !(outputs == step.outputs)) {
      std::printf("step %s: %s\n", step.name.c_str(),
                  status.ok() ? "wrong values" : status.ToString().c_str());
      return 3;
    }
  }
  std::printf("%d steps\n", static_cast<int>(steps.size()));
  return 0;
}

template <class W>
int RunThreads(DecoderModel* model, const ExecutorOptions& options,
               typename ThreadsExecutor<W>::Loop loop) {
  const std::vector<RecordedStep> steps = RecordSteps(model, 70);
  ThreadsExecutor<W> executor;
  const absl::Status started = executor.Start(model->program(), options, std::move(loop));
  if (!started.ok()) {
    std::printf("%s\n", started.ToString().c_str());
    return 3;
  }
  return RunSteps(model->decoder(), steps, &executor);
}

int Main(std::string what, const std::string& policy, int workers) {
  const auto take = [&](const std::string& prefix) {
    if (what.rfind(prefix, 0) != 0) return false;
    what.erase(0, prefix.size());
    return true;
  };
  const bool experts = take("early-exit-moe:"), exits = experts || take("early-exit:");
  ModelConfig config = *PresetConfig(experts ? "test-qwen2-moe" : "test-llama");
  config.layers = exits ? 4 : 2;
  config.intermediate = 128;
  DecoderLimits limits;
  limits.max_rows = 3;
  limits.max_tokens = 64;
  limits.max_outputs = 8;
  limits.max_model_len = 96;
  limits.num_blocks = 3 * 96 / limits.block_size;
  limits.exit_first = exits ? 1 : 0;
  DecoderModel model(config, DType::kF32, limits);
  if (what == "source") {
    const CodegenTarget target = {"device/arch/cpu.h", CodegenTarget::Entry::kCpu, false};
    std::fputs(Codegen(model.program(), target).c_str(), stdout);
    return 0;
  }
  CpuExecutorOptions options;
  options.workers = workers;
  options.policy = policy;
  options.placed = model.Placed();
  options.timeout_ns = 60'000'000'000;
  options.isa = kCpuPortable;  // the one whose ops are watched
  if (what == "shipped") {
    const std::vector<RecordedStep> steps = RecordSteps(&model, 70);
    auto executor = MakeCpuExecutor(model.program(), options);
    EVT_CHECK(executor.ok());
    return RunSteps(model.decoder(), steps, executor->get());
  }
  if (what == "forgetful") {
    return RunThreads<ForgetfulWorker>(
        &model, options, [](const auto& program, auto& worker) { RunSequential(program, worker); });
  }
  void* library = ::dlopen(what.c_str(), RTLD_NOW);
  void* entry = library == nullptr ? nullptr : ::dlsym(library, kStepKernel);
  if (entry == nullptr) {
    std::printf("%s\n", ::dlerror());
    return 3;
  }
  return RunThreads<PortableWorker>(&model, options, [entry](const auto&, PortableWorker& worker) {
    reinterpret_cast<void (*)(void*)>(entry)(&worker);
  });
}

}  // namespace
}  // namespace eventide

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr,
                 "usage: decoder_under_tsan [early-exit:|early-exit-moe:]shipped|forgetful|source|LIBRARY POLICY "
                 "WORKERS\n");
    return 2;
  }
  return eventide::Main(argv[1], argv[2], std::atoi(argv[3]));
}
