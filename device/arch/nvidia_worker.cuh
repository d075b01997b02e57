// A GPU worker from its first instruction to its last: setting up, then roles. See nvidia.cuh.
#pragma once

#include "device/arch/nvidia_tasks.cuh"

namespace eventide {

// Brings the node records into shared memory; `program` then points at them there.
template <class P>
EVT_FN void ShareNodes(const P& p, SharedState& shared, const ProgramRecord& record) {
  const int last = p.Sections() - 1;
  const i32 grids = last < 0 ? 0 : p.FirstGrid(last) + p.GridCount(last);
  constexpr u32 kWords = sizeof(Node) / 4;
  bool fit = true;
#pragma unroll 1
  for (i32 grid = 0; grid < grids; ++grid) {
    const i32 node = p.NodeIndex(grid);
    fit = fit && node < kSharedNodes;
    if (node < 0 || node >= kSharedNodes) continue;
    const u32* from = reinterpret_cast<const u32*>(record.nodes) + static_cast<u32>(node) * kWords;
    u32* to = reinterpret_cast<u32*>(&shared.nodes[node]);
#pragma unroll 1
    for (u32 i = threadIdx.x; i < kWords; i += kThreads) to[i] = from[i];
  }
  if (fit && threadIdx.x == 0) shared.program.nodes = reinterpret_cast<u64>(&shared.nodes[0]);
}

// Works out once what every walk over the program would at every layer.
template <class P>
EVT_FN void ShareGrids(const P& p, SharedState& shared) {
  const i32 grid = static_cast<i32>(threadIdx.x);
  const bool mine = grid < CountKnownGrids(p);
  if (mine) shared.grids[grid] = KnownTurn(p, shared.step, grid, static_cast<i32>(gridDim.x));
  __syncthreads();
  if (mine) shared.grids[grid].idle = IdleBehind(p, shared.grids, grid);
}

// Entry of every worker: sets up shared memory, derives the step's dims, clears the other counter
// bank's slice, then becomes its role.
template <class Port, class P>
EVT_FN void RunWorkerOn(const ProgramRecord& record, const StepHeader* header, u8* memory) {
  constexpr bool kTimeline = kRecordsTimeline<P>;
  using Roles = typename PortOf<Port, kTimeline>::Type;
  u32 dynamic_bytes;
  asm("mov.u32 %0, %dynamic_smem_size;" : "=r"(dynamic_bytes));
  const u32 page_count = (dynamic_bytes - kPagesAt) / kPageBytes;
  SharedState& shared = *reinterpret_cast<SharedState*>(memory);
  u8* scratch = memory + kSharedStateBytes;
  const P p{shared.program};
  if (threadIdx.x == 0) {
    shared.program = record;
#pragma unroll 1
    for (u32 lane = 0; lane < kLanes; ++lane) {
#pragma unroll 1
      for (u32 slot = 0; slot < kSlots; ++slot) {
        BarrierInit(SharedAddress(&shared.full[lane][slot]), Port::kFullArrivals);
        BarrierInit(SharedAddress(&shared.empty[lane][slot]), kComputeWarps);
      }
    }
#pragma unroll 1
    for (u32 slot = 0; slot < kTicketSlots; ++slot) {
      BarrierInit(SharedAddress(&shared.ticket_full[slot]), 1);
      BarrierInit(SharedAddress(&shared.ticket_empty[slot]), 1);
    }
#pragma unroll 1
    for (u32 slot = 0; slot < kHandedSlots; ++slot) {
      BarrierInit(SharedAddress(&shared.begun[slot]), 1);
      BarrierInit(SharedAddress(&shared.done[slot]), kComputeWarps);
      BarrierInit(SharedAddress(&shared.sent[slot]), 2);  // input warp, notify warp
    }
    Port::FenceAfterBarrierInit();
    shared.ended = 0;
    shared.left = 0;
    for (u32 role = 0; role < kRoles; ++role) {
      shared.waiting[role].cause = kAbortNone;
      shared.waiting[role].grid = -1;
    }
    // Each lane may always have its floor; the host has seen to it that there are as many pages.
    static_assert(P::kStreamFloor >= Port::kLongFloor && P::kInputFloor >= 1,
                  "the generated floors are lower than what the port's tiles hold: see GpuArch::stream_floor");
    shared.pool.Reset(page_count, P::kStreamFloor, P::kInputFloor);
    shared.sum_of_rows = 0;
    shared.step.header = header;
  }
  // What ops keep from task to task starts as nothing.
  if (threadIdx.x < kKeptBytes / 4) reinterpret_cast<u32*>(scratch + kScratchBytes)[threadIdx.x] = 0;
  __syncthreads();
  ShareNodes(p, shared, record);
  const u32 rows = header->rows;
  i32 sum = 0;
#pragma unroll 1
  for (u32 r = threadIdx.x; r < rows; r += kThreads) {
    sum += QueryLength(shared.step.Rows()[r], shared.step.Slots(), header->step);
  }
  if (sum != 0) atomicAdd(&shared.sum_of_rows, sum);
  __syncthreads();
  if (threadIdx.x == 0) {
#pragma unroll 1
    for (u32 i = 0; i < header->symbol_count; ++i) {
      const i32 value = header->symbols[i];
      shared.step.symbols[i] = value == kSumOfRows ? shared.sum_of_rows : value;
    }
    p.EvaluateDims(shared.step);
    // The more tokens, the more of what is copied are activations.
    const u32 share = shared.sum_of_rows > 8 ? page_count / 3 : page_count / 4;
    shared.pool.floor[kLaneInput] = Max(shared.pool.floor[kLaneInput], share);
  }
  __syncthreads();
  ShareGrids(p, shared);
  const ProgramRecord& program = shared.program;
  // The other bank is next step's; the kernel boundary orders these stores before it.
  const u64 elements = program.bank_bytes / kEventStrideBytes;
#pragma unroll 1
  for (u64 i = u64{blockIdx.x} * kThreads + threadIdx.x; i < elements;
       i += u64{gridDim.x} * kThreads) {
    *CounterAt(program, 1 - header->bank, static_cast<i32>(i)) = 0;
  }
  __syncthreads();
  const u32 warp = threadIdx.x / 32;
  if (warp < kComputeWarps) {
    Port::TakeRegisters();
    GpuCompute<Roles> compute(shared);
    if constexpr (kTimeline) compute.TimeStep(kRoleCompute);
    FollowCompute(P{compute.program}, compute);
    if constexpr (kTimeline) compute.TimeStepEnd();
    if (compute.Leader()) {
      compute.SetCause(kRoleCompute, kAbortNone);
      *static_cast<volatile u32*>(&shared.left) = 1;
    }
  } else {
    Port::GiveRegisters();
    if (warp == kStreamWarp) {
      using Stream = GpuProducer<Roles, kLaneStream, Port::kOneThreadCopies>;
      if (!Stream::kAlone || Port::ElectOne()) {
        Stream stream(shared);
        if constexpr (kTimeline) stream.TimeStep(kRoleStream);
        RunStream(P{stream.program}, stream);
        if constexpr (kTimeline) stream.TimeStepEnd();
        stream.Drain();
        stream.SetCause(kRoleStream, kAbortNone);
      }
    } else if (warp == kInputWarp) {
      GpuProducer<Roles, kLaneInput, false> input(shared);
      if constexpr (kTimeline) input.TimeStep(kRoleInput);
      FollowInput(P{input.program}, input);
      if constexpr (kTimeline) input.TimeStepEnd();
      input.Drain();
      input.SetCause(kRoleInput, kAbortNone);
    } else if (warp == kWalkWarp) {
      GpuWalker<Port> walker(shared);
      RunWalk(P{walker.program}, walker);
    } else {
      GpuNotifier<Port> notifier(shared);
      notifier.Run(P{notifier.program});
    }
  }
}

template <class Port, class P>
EVT_FN void RunWorkerOf(const ProgramRecord& program, const StepHeader& header) {
  extern __shared__ __align__(128) u8 worker_memory[];
  RunWorkerOn<Port, P>(program, &header, worker_memory);
}

}  // namespace eventide
