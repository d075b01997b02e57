// toy_layers: made by jit/codegen.cc from the graph.
#include "device/arch/sm90.cuh"
#include "device/atomic.h"
#include "device/generated.h"
#include "device/loop.h"
#include "ops/toy_fill.h"
#include "ops/toy_mix.h"

namespace eventide {

struct GeneratedProgram {
  const ProgramRecord& record;

  // Pages each lane must be able to hold: the largest floor of the ops below, and of the port.
  static constexpr u32 kStreamFloor = 1;
  static constexpr u32 kInputFloor = 1;

  EVT_FN int Sections() const { return 2; }
  EVT_FN int Layers(int section) const {
    switch (section) {
      case 1:  // layers
        return 3;
    }
    return 1;
  }
  EVT_FN int FirstGrid(int section) const {
    switch (section) {
      case 1:  // layers
        return 1;
    }
    return 0;
  }
  EVT_FN int GridCount(int section) const {
    return 1;
  }
  EVT_FN bool IsGate(i32 grid) const {
    return false;
  }
  EVT_FN bool DeviceExtent(i32 grid) const {
    return false;
  }
  EVT_FN bool StepKnown(i32 grid) const {
    return true;
  }
  EVT_FN i32 NodeIndex(i32 grid) const {
    return grid;
  }
  EVT_FN const Node& NodeOf(i32 grid) const {
    return reinterpret_cast<const Node*>(record.nodes)[NodeIndex(grid)];
  }
  EVT_FN u32 Policy(i32 grid) const {
    return NodeIndex(grid) < 0 ? u32{kPolicyStatic} : NodeOf(grid).policy;
  }
  // A value another task published: whoever evaluates it has seen the publication fire.
  EVT_FN i32 Load(i32 tensor, i32 element) const {
    const u64 base = reinterpret_cast<const u64*>(record.published)[tensor];
    return static_cast<i32>(
        DirectSync::LoadRelaxed(reinterpret_cast<const u32*>(base) + element));
  }
  EVT_FN i32 Extent(const StepView& step, i32 grid, i32 layer, i32 dim) const {
    switch (grid) {
      case 1:  // mix
        return dim == 0 ? FloorDiv((step.symbols[0] + 7), 8) : dim == 1 ? 4 : 1;
    }
    return dim == 0 ? FloorDiv((step.symbols[0] + 7), 8) : 1;
  }
  EVT_FN i32 TicketBase(i32 grid) const {
    switch (grid) {
      case 1:  // mix
        return 33;
    }
    return 32;
  }
  EVT_FN i32 Ticket(i32 grid, i32 layer) const { return TicketBase(grid) + layer; }
  EVT_FN int Publications(i32 grid) const {
    return 0;
  }
  EVT_FN ElementBox Publication(const StepView& step, i32 grid, i32 layer, int i) const {
    return None();
  }
  EVT_FN bool StepWide(i32 grid, int i) const {
    return false;
  }
  EVT_FN int EdgePublications(i32 grid) const {
    return 0;
  }
  EVT_FN ElementBox EdgePublication(const StepView& step, i32 grid, const Coord& at, int i) const {
    return None();
  }
  EVT_FN int Waits(i32 grid) const {
    switch (grid) {
      case 1:  // mix
        return 1;
    }
    return 0;
  }
  EVT_FN ElementBox WaitBox(const StepView& step, i32 grid, const Coord& at, int i) const {
    switch (grid) {
      case 1:  // mix
        return One(0, at.layer, at.at[0]);
    }
    return None();
  }
  EVT_FN int Notifies(i32 grid) const {
    return 1;
  }
  EVT_FN ElementBox NotifyBox(const StepView& step, i32 grid, const Coord& at, int i) const {
    switch (grid) {
      case 1:  // mix
        return One(0, at.layer + 1, at.at[0]);
    }
    return One(0, 0, at.at[0]);
  }
  // Where an element's counter is in the bank, in elements.
  EVT_FN i32 Element(i32 event, const i32* index) const {
    return 0 + index[0] * 8 + index[1];
  }
  // Arrivals that the edges of ordinary tasks bring to an element.
  EVT_FN i32 Derived(const StepView& step, i32 event, const i32* index) const {
    return Max(((0 - index[0]) + 1), 0) + (Max((index[0] - Max((index[0] + (-1)), 0)), 0) * 4);
  }
  // The same, plus a gate's arrival where there are none.
  EVT_FN i32 Target(const StepView& step, i32 event, const i32* index) const {
    return Max(((0 - index[0]) + 1), 0) + (Max((index[0] - Max((index[0] + (-1)), 0)), 0) * 4);
  }
  EVT_FN bool HasStream(i32 grid) const {
    switch (grid) {
      case 1:  // mix
        return kHasStream<ToyMix, BF16>;
    }
    return kHasStream<ToyFill, BF16>;
  }
  EVT_FN bool StartsEarly(i32 grid) const {
    return false;
  }
  template <class W>
  EVT_FN void Stream(W& w, const StepView& step, i32 grid, const Coord& at) const {
    switch (grid) {
      case 1:  // mix
        return CallStream<ToyMix, BF16>(w, step, NodeOf(grid), at, ParamsOf<ToyMix>(NodeOf(grid)));
    }
    return CallStream<ToyFill, BF16>(w, step, NodeOf(grid), at, ParamsOf<ToyFill>(NodeOf(grid)));
  }
  template <class W>
  EVT_FN void Input(W& w, const StepView& step, i32 grid, const Coord& at) const {
    switch (grid) {
      case 1:  // mix
        return CallInput<ToyMix, BF16>(w, step, NodeOf(grid), at, ParamsOf<ToyMix>(NodeOf(grid)));
    }
    return CallInput<ToyFill, BF16>(w, step, NodeOf(grid), at, ParamsOf<ToyFill>(NodeOf(grid)));
  }
  template <class W>
  EVT_FN void Compute(W& w, const StepView& step, i32 grid, const Coord& at) const {
    switch (grid) {
      case 1:  // mix
        return CallCompute<ToyMix, BF16>(w, step, NodeOf(grid), at, ParamsOf<ToyMix>(NodeOf(grid)));
    }
    return CallCompute<ToyFill, BF16>(w, step, NodeOf(grid), at, ParamsOf<ToyFill>(NodeOf(grid)));
  }
  EVT_FN void EvaluateDims(StepView& step) const {
    step.dims[0] = step.symbols[0];
  }
};

}  // namespace eventide

extern "C" __global__ void __launch_bounds__(eventide::kThreads, 1)
    eventide_step(const __grid_constant__ eventide::ProgramRecord program,
                  const __grid_constant__ eventide::StepHeader header) {
  eventide::RunWorker<eventide::GeneratedProgram>(program, header);
}
