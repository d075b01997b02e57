#include "runtime/sim_executor.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_format.h"
#include "runtime/abort.h"
#include "runtime/evaluated_program.h"
#include "runtime/host_memory.h"
#include "runtime/ops.h"

namespace eventide {
namespace {

constexpr int kMaxSimWorkers = 64;

using SimProgram = RunnableProgram<SimWorker>;

// Negative control: what RunInput would be if it took pages before it waited. Copies are held back
// until the events have fired, so that only the order of taking differs.
void RunInputReserving(const SimProgram& p, SimWorker& w) {
  const auto enter = [](i32, const Coord&, u32) { return true; };
  WalkTasks<TaskWaits::kNone>(p, w, enter, [&](i32 grid, const Coord& at, u32) {
    w.Begin(TaskName{grid, at});
    if (p.IsGate(grid)) {
      AwaitTask(p, w, grid, at);
      PassGate(p, w, grid, at);
      return true;
    }
    std::vector<SimCopy> held;
    w.held = &held;
    p.Input(w, w.step, grid, at);
    w.held = nullptr;
    AwaitTask(p, w, grid, at);
    w.Ready();
    for (const SimCopy& copy : held) SimIssue(copy);
    return true;
  });
}

class SimExecutorImpl : public HostExecutor, public SimExecutor {
 public:
  absl::Status Start(Program program, const SimExecutorOptions& options, int workers) {
    RETURN_IF_ERROR(Setup(std::move(program), options, {.workers = workers}));
    options_ = options;
    runnable_ = std::make_unique<SimProgram>(*program_, nodes_, addresses_);
    runnable_->SetZeroIsOpen(options.controls.zero_is_open);
    RETURN_IF_ERROR(runnable_->Bind(options.ops != nullptr ? *options.ops : SimOps()));
    record_.nodes = reinterpret_cast<uint64_t>(runnable_->nodes().data());
    RETURN_IF_ERROR(SetFloors());
    shared_.resize(workers);
    roles_.resize(static_cast<size_t>(workers) * kRoles);
    for (SimShared& shared : shared_) {
      ASSIGN_OR_RETURN(const Buffer pages, AllocateBuffer(int64_t{options.pages} * kPageBytes));
      ASSIGN_OR_RETURN(const Buffer scratch, AllocateBuffer(kScratchBytes + kKeptBytes));
      shared.pages = reinterpret_cast<u8*>(pages.address);
      shared.scratch = reinterpret_cast<u8*>(scratch.address);
      std::memset(shared.pages, kSimPoison, static_cast<size_t>(options.pages) * kPageBytes);
    }
    return absl::OkStatus();
  }

  Executor& executor() override { return *this; }
  void SetSeed(uint64_t seed) override { options_.seed = seed; }
  const SimTrace& trace() const override { return world_.trace(); }

 protected:
  void EvaluateDims(StepView& view) const override { runnable_->EvaluateDims(view); }
  absl::Status RunWorkers(const StepHeader& header, const StepView& view) override;

 private:
  struct Body {
    SimExecutorImpl* self;
    SimWorker* worker;
  };
  static void RunRole(void* body);
  absl::Status SetFloors();
  void ResetWorker(int index, const StepView& view);
  absl::Status Audit(const StepHeader& header, const StepView& view) const;
  std::string WaitText(const SimWorld::Waiting& fibre) const;
  absl::Status DeadlockStatus(const char* what) const;
  std::string WorkerText(const SimWorker& worker) const;

  SimExecutorOptions options_;
  std::unique_ptr<SimProgram> runnable_;
  u32 floors_[kLanes] = {1, 1};
  std::vector<SimShared> shared_;
  std::vector<SimWorker> roles_;  // worker-major
  std::vector<Body> bodies_;
  SimWorld world_;
};

absl::Status SimExecutorImpl::SetFloors() {
  std::string largest[kLanes] = {"none", "none"};
  for (const ProgramGrid& grid : program_->grids) {
    if (grid.is_gate) continue;
    const i32 wanted[kLanes] = {grid.op->stream_floor, grid.op->input_floor};
    for (int lane = 0; lane < kLanes; ++lane) {
      if (wanted[lane] <= static_cast<i32>(floors_[lane])) continue;
      floors_[lane] = static_cast<u32>(wanted[lane]);
      largest[lane] = grid.name;
    }
  }
  if (static_cast<int>(floors_[0] + floors_[1]) > options_.pages) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: grid %s needs %d pages to stream and grid %s %d for its inputs, but a worker has %d",
        program_->name, largest[0], floors_[0], largest[1], floors_[1], options_.pages));
  }
  return absl::OkStatus();
}

void SimExecutorImpl::RunRole(void* argument) {
  const auto* body = static_cast<const Body*>(argument);
  const SimProgram& program = *body->self->runnable_;
  SimWorker& worker = *body->worker;
  if (worker.role == kRoleStream) {
    RunStream(program, worker);
  } else if (worker.role == kRoleCompute) {
    RunCompute(program, worker);
  } else if (body->self->options_.controls.reserve_then_wait) {
    RunInputReserving(program, worker);
  } else {
    RunInput(program, worker);
  }
}

void SimExecutorImpl::ResetWorker(int index, const StepView& view) {
  SimShared& shared = shared_[index];
  u8 *pages = shared.pages, *scratch = shared.scratch;
  shared = {};
  shared.pages = pages;
  shared.scratch = scratch;
  std::memset(scratch + kScratchBytes, 0, kKeptBytes);
  const bool one_lane = options_.controls.one_page_lane;
  shared.pool.Reset(static_cast<u32>(options_.pages), one_lane ? 0 : floors_[0],
                    one_lane ? 0 : floors_[1]);
  for (u32 role = 0; role < kRoles; ++role) {
    SimWorker& worker = roles_[static_cast<size_t>(index) * kRoles + role];
    worker = {};
    worker.step = view;
    worker.worker = static_cast<u32>(index);
    worker.workers = static_cast<u32>(workers());
    worker.role = role;
    worker.program = &record_;
    worker.shared = &shared;
    worker.task.grid = -1;
  }
}

absl::Status SimExecutorImpl::RunWorkers(const StepHeader& header, const StepView& view) {
  world_.Start(options_.seed++, options_.most_switches);
  bodies_.resize(roles_.size());
  for (int index = 0; index < workers(); ++index) {
    ResetWorker(index, view);
    ClearSlice(header.bank, index);
  }
  for (size_t i = 0; i < roles_.size(); ++i) {
    bodies_[i] = {this, &roles_[i]};
    world_.Add(&roles_[i], &RunRole, &bodies_[i]);
  }
  const SimWorld::End end = world_.Run();
  if (end != SimWorld::End::kFinished) {
    // Pages that were in use keep what they held; the next step must not see it.
    for (SimShared& shared : shared_)
      std::memset(shared.pages, kSimPoison, static_cast<size_t>(options_.pages) * kPageBytes);
  }
  RETURN_IF_ERROR(runnable_->TakeFault());
  switch (end) {
    case SimWorld::End::kFinished:
      return options_.controls.zero_is_open ? absl::OkStatus() : Audit(header, view);
    case SimWorld::End::kDeadlock:
      return DeadlockStatus("deadlock: nobody can run");
    case SimWorld::End::kTooLong:
      return DeadlockStatus("no end in sight after the most switches allowed");
    default: {
      const SimWorker& worker = *world_.failed_worker();
      return absl::InternalError(
          absl::StrFormat("%s: %s %s", program_->name, WorkerText(worker), world_.failure()));
    }
  }
}

std::string SimExecutorImpl::WorkerText(const SimWorker& worker) const {
  static constexpr const char* kRoleNames[] = {"stream", "input", "compute"};
  return absl::StrFormat(
      "worker %d (%s) at %s", worker.worker, kRoleNames[worker.role],
      TaskText(*program_, worker.task.grid, worker.task.at.layer, worker.task.at.at));
}

std::string SimExecutorImpl::WaitText(const SimWorld::Waiting& fibre) const {
  static constexpr const char* kLaneNames[] = {"stream", "input"};
  const SimWait& wait = fibre.wait;
  if (fibre.done) return "has finished";
  switch (wait.kind) {
    case SimWait::kEvent:
      return absl::StrFormat("waits for event %s (%d of %d arrivals)",
                             ElementText(*program_, wait.element), wait.seen, wait.expected);
    case SimWait::kPage: {
      const u64 word = fibre.worker->shared->pool.word;
      return absl::StrFormat(
          "waits for a page of the %s lane (%d free, %d held by stream, %d by input)",
          kLaneNames[wait.lane], CountBits(PageWord::Free(word)), PageWord::Held(word, kLaneStream),
          PageWord::Held(word, kLaneInput));
    }
    case SimWait::kSlotEmpty:
      return absl::StrFormat("waits for the %s lane's ring to have room", kLaneNames[wait.lane]);
    case SimWait::kSlotFull:
      return absl::StrFormat("waits for a page of the %s lane to be filled", kLaneNames[wait.lane]);
    case SimWait::kReady:
      return absl::StrFormat("waits for its input role (task %d, ready %d)", wait.expected,
                             wait.seen);
    case SimWait::kTicket:
      return "waits for another role to pass a ticket";
    default:
      return "can run";
  }
}

absl::Status SimExecutorImpl::DeadlockStatus(const char* what) const {
  std::string text = absl::StrFormat("%s: %s (seed %d, %d switches)", program_->name, what,
                                     options_.seed - 1, world_.trace().switches);
  for (const SimWorld::Waiting& fibre : world_.Fibres())
    absl::StrAppend(&text, "\n  ", WorkerText(*fibre.worker), " ", WaitText(fibre));
  return absl::DeadlineExceededError(text);
}

// What must hold after every step: all pages given back, every element exactly at its target.
absl::Status SimExecutorImpl::Audit(const StepHeader& header, const StepView& view) const {
  for (int index = 0; index < workers(); ++index) {
    const SimShared& shared = shared_[index];
    for (int lane = 0; lane < kLanes; ++lane) {
      if (shared.asked[lane] == shared.dropped[lane]) continue;
      return absl::InternalError(absl::StrFormat(
          "%s: worker %d asked for %d pages of the %s lane and dropped %d", program_->name, index,
          shared.asked[lane], lane == kLaneStream ? "stream" : "input", shared.dropped[lane]));
    }
  }
  std::vector<int64_t> symbols(view.symbols, view.symbols + kMaxSymbols);
  ExprEnv env;
  env.symbols = symbols.data();
  for (size_t e = 0; e < program_->events.size(); ++e) {
    const ProgramEvent& event = program_->events[e];
    // Counts on the device may have been overwritten by a later layer.
    if (event.target.HasLoad()) continue;
    ElementBox box{static_cast<i32>(e), {}, {1, 1, 1, 1}};
    for (size_t dim = 0; dim < event.shape.size(); ++dim)
      box.count[dim] = static_cast<i32>(std::max<int64_t>(0, Evaluate(event.shape[dim], env)));
    for (i32 k = 0; k < box.size(); ++k) {
      i32 index[kMaxEventDims];
      box.Index(k, index);
      const i32 element = runnable_->Element(box.event, index);
      const u32 target = static_cast<u32>(runnable_->Target(view, box.event, index));
      const u32 seen = *CounterAt(record_, header.bank, element);
      if (seen != target) {
        return absl::InternalError(
            absl::StrFormat("%s: event %s ended with %d arrivals instead of %d", program_->name,
                            ElementText(*program_, element), seen, target));
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<SimExecutorImpl>> Make(Program program,
                                                      const SimExecutorOptions& options) {
  const int workers = options.workers == 0 ? 4 : options.workers;
  if (workers < 1 || workers > kMaxSimWorkers) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d workers: the simulator has between 1 and %d", workers, kMaxSimWorkers));
  }
  if (options.pages < kLanes || options.pages > kMaxPages) {
    return absl::InvalidArgumentError(absl::StrFormat("%d pages: a worker has between %d and %d",
                                                      options.pages, kLanes, kMaxPages));
  }
  auto executor = std::make_unique<SimExecutorImpl>();
  RETURN_IF_ERROR(executor->Start(std::move(program), options, workers));
  return executor;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SimExecutor>> MakeSimExecutor(Program program,
                                                             const SimExecutorOptions& options) {
  ASSIGN_OR_RETURN(auto executor, Make(std::move(program), options));
  return executor;
}

absl::StatusOr<std::unique_ptr<Executor>> MakeSimBackend(Program program,
                                                         const SimExecutorOptions& options) {
  ASSIGN_OR_RETURN(auto executor, Make(std::move(program), options));
  return executor;
}

}  // namespace eventide
