// What an op is made of: its description (OpInfo), and the view of one task that its parts receive.
// An op is one struct in ops/<name>.h:
//
//   struct RmsNorm {
//     static constexpr OpInfo kInfo = {"rms_norm", 3, {In("x"), In("weight"), Out("y")}};
//     struct Params { DimRef rows; i32 columns; float eps; };   // trivially copyable
//     template <class L> static EVT_FN void Stream(L& lane, const Task<Params>& t);   // optional
//     template <class L> static EVT_FN void Input(L& lane, const Task<Params>& t);    // optional
//     template <class W> static EVT_FN void Compute(W& w, const Task<Params>& t);
//     template <class W> static EVT_FN void Prepare(W& w, const Task<Params>& t);     // optional
//   };
//
// Stream copies what needs no activation (weights, KV of earlier steps) and runs ahead of all events;
// Input copies what the task's events guard and runs after they have fired; Compute consumes the pages
// of both lanes in the order they were asked for, and writes the result. The parts run concurrently.
// An op that starts early begins Compute before the task's events have fired and calls w.AwaitReady() itself,
// once, before it reads what they guard (constants, and what the publications of the grid's extents cover,
// it may read before): what it works out until then costs no time.
// Prepare is called earlier still, on targets where another role walks ahead (W::kPrepares), and leaves what it has
// worked out in w.Prepared(), where the task's Input and Compute find it (W::kFollows,
// device/dispatch.h). Elsewhere they do it themselves.
#pragma once

#include "device/abi.h"

namespace eventide {

enum OperandMode : u8 { kRead, kWrite, kReadWrite };

struct OperandInfo {
  const char* name;
  OperandMode mode;
};
constexpr OperandInfo In(const char* name) { return {name, kRead}; }
constexpr OperandInfo Out(const char* name) { return {name, kWrite}; }
constexpr OperandInfo InOut(const char* name) { return {name, kReadWrite}; }

struct OpInfo {
  const char* name;  // of the header: ops/<name>.h declares the struct <Name>
  i32 operand_count;
  OperandInfo operands[kMaxOperands];
  // The smallest number of pages each lane must be able to hold for the op to make progress
  // (Verify holds it against the pool, so that page allocation cannot deadlock).
  i32 stream_floor = 0;
  i32 input_floor = 0;
  // Kernels are compiled for the op's parameters, where all its grids have the same: for ops that get much
  // shorter by it.
  bool constant_params = false;
  bool starts_early = false;  // Compute calls AwaitReady
  // What the device decides changes how many tasks there are, not how long they take (schedulers/cost.h).
  bool even_tasks = false;
};

// What one page is filled from: `runs` runs, run_bytes apart in the page, of `pieces` separate blocks that lie
// back to back; all of `bytes` bytes but the last of a run, which has last_bytes. Multiples of 16.
struct CopyShape {
  i32 pieces;
  u32 bytes, last_bytes;
  i32 runs;
  u32 run_bytes;

  static EVT_FN CopyShape Of(i32 pieces, u32 bytes) { return {pieces, bytes, bytes, 1, 0}; }
  EVT_FN u32 RunSize() const { return static_cast<u32>(pieces - 1) * bytes + last_bytes; }
  EVT_FN u32 Size() const { return static_cast<u32>(runs) * RunSize(); }
};

// A page as a box of one of an op's operands, seen as a tensor of five dims: what targets with tensor maps copy
// with one instruction, whatever its pieces are. An op that has such boxes says how many (kBoxes) and what they
// are (BoxOf(params, number, bytes of an element)). In the page the first dim runs fastest.
struct TensorBox {
  i32 operand;
  u32 count[4];   // of dims 0 to 3 (dim 4: layers); 0: as many as the operand's memory has. Dim 0 is of 8-byte
                  // elements, back to back
  u64 stride[3];  // of dims 1 to 3, in bytes, multiples of 16
  u32 box[4];     // counts of the box, each at most 256; one layer
};
inline constexpr i32 kBoxedElementBytes = 2;  // of an element, on targets with tensor maps
// Where a box begins.
struct BoxAt {
  i32 at[5];
};

// A dimension that is a constant or one of the program's derived dims, evaluated once per step.
struct DimRef {
  i32 index;  // >= 0: a derived dim; -1: the constant `value`
  i32 value;
};

// The step as a worker sees it: the header and the dims that follow from it. One per worker.
struct StepView {
  const StepHeader* header;
  i32 symbols[kMaxSymbols];
  i32 dims[kMaxDims];

  EVT_FN i32 Dim(DimRef ref) const { return ref.index < 0 ? ref.value : dims[ref.index]; }
  EVT_FN const Row* Rows() const { return reinterpret_cast<const Row*>(header->rows_ptr); }
  EVT_FN SlotState* Slots() const { return reinterpret_cast<SlotState*>(header->slot_state_ptr); }
  EVT_FN const u32* BlockTable(u32 slot) const {
    return reinterpret_cast<const u32*>(header->block_table_ptr) +
           static_cast<u64>(slot) * header->blocks_per_slot;
  }
};

// One task: where it is in its grid, its op's parameters and its tensors.
template <class ParamsType>
struct Task {
  const StepView& step;
  const Node& node;
  Coord at;
  const ParamsType& fixed;  // the node's parameters, or the same as constants

  EVT_FN const ParamsType& params() const { return fixed; }
  template <class T>
  EVT_FN T* Operand(int index) const {
    const TensorRef& ref = node.operands[index];
    return reinterpret_cast<T*>(ref.address + static_cast<u32>(at.layer) * static_cast<u64>(ref.layer_stride));
  }
  EVT_FN i32 Dim(DimRef ref) const { return step.Dim(ref); }
  // Where the tensor map of the op's box with this number is, and the last index of a box of this operand.
  EVT_FN u64 Box(i32 number) const { return node.boxes + static_cast<u32>(number) * kTensorMapBytes; }
  EVT_FN i32 BoxLayer(int index) const { return node.operands[index].layer_stride != 0 ? at.layer : 0; }
};

}  // namespace eventide
