// toy_count: made by jit/codegen.cc from the graph.
#include "device/arch/sm90.cuh"
#include "device/atomic.h"
#include "device/generated.h"
#include "device/loop.h"
#include "ops/toy_count.h"
#include "ops/toy_fill.h"
#include "ops/toy_mark.h"
#include "ops/toy_total.h"

namespace eventide {

struct GeneratedProgram {
  const ProgramRecord& record;

  // Pages each lane must be able to hold: the largest floor of the ops below, and of the port.
  static constexpr u32 kStreamFloor = 1;
  static constexpr u32 kInputFloor = 1;

  EVT_FN int Sections() const { return 1; }
  EVT_FN int Layers(int section) const {
    return 1;
  }
  EVT_FN int FirstGrid(int section) const {
    return 0;
  }
  EVT_FN int GridCount(int section) const {
    return 5;
  }
  EVT_FN bool IsGate(i32 grid) const {
    switch (grid) {
      case 3:  // mark.gate
        return true;
    }
    return false;
  }
  EVT_FN bool DeviceExtent(i32 grid) const {
    switch (grid) {
      case 2:  // mark
        return true;
    }
    return false;
  }
  EVT_FN bool StepKnown(i32 grid) const {
    switch (grid) {
      case 2:  // mark
        return false;
    }
    return true;
  }
  EVT_FN i32 NodeIndex(i32 grid) const {
    switch (grid) {
      case 3:  // mark.gate
        return -1;
      case 4:  // total
        return 3;
    }
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
      case 0:  // fill
        return dim == 0 ? FloorDiv((step.symbols[0] + 7), 8) : 1;
      case 2:  // mark
        return dim == 0 ? Load(3, 0) : 1;
    }
    return 1;
  }
  EVT_FN i32 TicketBase(i32 grid) const {
    switch (grid) {
      case 1:  // count
        return 11;
      case 2:  // mark
        return 12;
      case 3:  // mark.gate
        return 13;
      case 4:  // total
        return 14;
    }
    return 10;
  }
  EVT_FN i32 Ticket(i32 grid, i32 layer) const { return TicketBase(grid) + layer; }
  EVT_FN int Publications(i32 grid) const {
    switch (grid) {
      case 2:  // mark
        return 1;
    }
    return 0;
  }
  EVT_FN ElementBox Publication(const StepView& step, i32 grid, i32 layer, int i) const {
    switch (grid) {
      case 2:  // mark
        return One(1, 0);
    }
    return None();
  }
  EVT_FN bool StepWide(i32 grid, int i) const {
    switch (grid) {
      case 2:  // mark
        return i == 0;
    }
    return false;
  }
  EVT_FN int EdgePublications(i32 grid) const {
    switch (grid) {
      case 3:  // mark.gate
      case 4:  // total
        return 1;
    }
    return 0;
  }
  EVT_FN ElementBox EdgePublication(const StepView& step, i32 grid, const Coord& at, int i) const {
    switch (grid) {
      case 3:  // mark.gate
      case 4:  // total
        return One(1, 0);
    }
    return None();
  }
  EVT_FN int Waits(i32 grid) const {
    switch (grid) {
      case 0:  // fill
        return 0;
      case 4:  // total
        return 2;
    }
    return 1;
  }
  EVT_FN ElementBox WaitBox(const StepView& step, i32 grid, const Coord& at, int i) const {
    switch (grid) {
      case 0:  // fill
        return None();
      case 1:  // count
        return Span(0, {0, FloorDiv((step.symbols[0] + 7), 8)});
      case 4:  // total
        if (i == 0) return One(2, 0);
        return One(1, 0);
    }
    return One(1, 0);
  }
  EVT_FN int Notifies(i32 grid) const {
    switch (grid) {
      case 4:  // total
        return 0;
    }
    return 1;
  }
  EVT_FN ElementBox NotifyBox(const StepView& step, i32 grid, const Coord& at, int i) const {
    switch (grid) {
      case 0:  // fill
        return One(0, at.at[0]);
      case 1:  // count
        return One(1, 0);
      case 4:  // total
        return None();
    }
    return One(2, 0);
  }
  // Where an element's counter is in the bank, in elements.
  EVT_FN i32 Element(i32 event, const i32* index) const {
    switch (event) {
      case 1:  // counted
        return 8 + index[0];
      case 2:  // marked
        return 9 + index[0];
    }
    return 0 + index[0];
  }
  // Arrivals that the edges of ordinary tasks bring to an element.
  EVT_FN i32 Derived(const StepView& step, i32 event, const i32* index) const {
    switch (event) {
      case 2:  // marked
        return Load(3, index[0]);
    }
    return 1;
  }
  // The same, plus a gate's arrival where there are none.
  EVT_FN i32 Target(const StepView& step, i32 event, const i32* index) const {
    switch (event) {
      case 2:  // marked
        return Max(Load(3, index[0]), 1);
    }
    return 1;
  }
  EVT_FN bool HasStream(i32 grid) const {
    switch (grid) {
      case 1:  // count
        return kHasStream<ToyCount, BF16>;
      case 2:  // mark
        return kHasStream<ToyMark, BF16>;
      case 3:  // mark.gate
        return false;
      case 4:  // total
        return kHasStream<ToyTotal, BF16>;
    }
    return kHasStream<ToyFill, BF16>;
  }
  EVT_FN bool StartsEarly(i32 grid) const {
    return false;
  }
  template <class W>
  EVT_FN void Stream(W& w, const StepView& step, i32 grid, const Coord& at) const {
    switch (grid) {
      case 1:  // count
        return CallStream<ToyCount, BF16>(w, step, NodeOf(grid), at, ParamsOf<ToyCount>(NodeOf(grid)));
      case 2:  // mark
        return CallStream<ToyMark, BF16>(w, step, NodeOf(grid), at, ParamsOf<ToyMark>(NodeOf(grid)));
      case 3:  // mark.gate
        return;
      case 4:  // total
        return CallStream<ToyTotal, BF16>(w, step, NodeOf(grid), at, ParamsOf<ToyTotal>(NodeOf(grid)));
    }
    return CallStream<ToyFill, BF16>(w, step, NodeOf(grid), at, ParamsOf<ToyFill>(NodeOf(grid)));
  }
  template <class W>
  EVT_FN void Input(W& w, const StepView& step, i32 grid, const Coord& at) const {
    switch (grid) {
      case 1:  // count
        return CallInput<ToyCount, BF16>(w, step, NodeOf(grid), at, ParamsOf<ToyCount>(NodeOf(grid)));
      case 2:  // mark
        return CallInput<ToyMark, BF16>(w, step, NodeOf(grid), at, ParamsOf<ToyMark>(NodeOf(grid)));
      case 3:  // mark.gate
        return;
      case 4:  // total
        return CallInput<ToyTotal, BF16>(w, step, NodeOf(grid), at, ParamsOf<ToyTotal>(NodeOf(grid)));
    }
    return CallInput<ToyFill, BF16>(w, step, NodeOf(grid), at, ParamsOf<ToyFill>(NodeOf(grid)));
  }
  template <class W>
  EVT_FN void Compute(W& w, const StepView& step, i32 grid, const Coord& at) const {
    switch (grid) {
      case 1:  // count
        return CallCompute<ToyCount, BF16>(w, step, NodeOf(grid), at, ParamsOf<ToyCount>(NodeOf(grid)));
      case 2:  // mark
        return CallCompute<ToyMark, BF16>(w, step, NodeOf(grid), at, ParamsOf<ToyMark>(NodeOf(grid)));
      case 3:  // mark.gate
        return;
      case 4:  // total
        return CallCompute<ToyTotal, BF16>(w, step, NodeOf(grid), at, ParamsOf<ToyTotal>(NodeOf(grid)));
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
