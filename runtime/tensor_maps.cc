#include "runtime/tensor_maps.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "runtime/memory.h"

namespace eventide {
namespace {

// Of cuda.h.
constexpr int kUint64 = 4;       // CU_TENSOR_MAP_DATA_TYPE_UINT64
constexpr int kPromotion256 = 3;  // CU_TENSOR_MAP_L2_PROMOTION_L2_256B

absl::StatusOr<BoxedOperand> OperandOf(const Program& program, const ProgramGrid& grid, const Node& node,
                                       int operand) {
  ASSIGN_OR_RETURN(const OperandPlace place, PlaceOf(program, grid, grid.operands[operand]));
  const int64_t layers = place.layer_stride == 0 ? 1 : program.sections[grid.section].layers;
  return BoxedOperand{node.operands[operand].address, layers, place.layer_stride, place.layer_bytes};
}

}  // namespace

absl::StatusOr<TensorMapShape> ShapeOf(const TensorBox& box, const BoxedOperand& operand) {
  TensorMapShape shape = {};
  for (int i = 0; i < 4; ++i) {
    shape.dims[i] = box.count[i];
    shape.box[i] = box.box[i];
    if (i > 0) shape.strides[i - 1] = box.stride[i - 1];
    if (box.count[i] == 0) {
      if (i == 0) return absl::InternalError("a box whose first dim is open");
      // A tensor without elements has a map all the same; nobody copies from it.
      shape.dims[i] = std::max<uint64_t>(1, static_cast<uint64_t>(operand.layer_bytes) / box.stride[i - 1]);
    }
  }
  shape.dims[4] = static_cast<uint64_t>(operand.layers);
  shape.box[4] = 1;
  // Of one layer any stride will do.
  shape.strides[3] = operand.layer_stride == 0 ? 16 : static_cast<uint64_t>(operand.layer_stride);
  return shape;
}

absl::Status DescribeBoxes(const CudaDevice& gpu, const Program& program, CudaMemory* memory,
                           absl::Span<Node> nodes) {
  int64_t count = 0;
  for (const ProgramGrid& grid : program.grids) count += static_cast<int64_t>(grid.boxes.size());
  if (count == 0 || !gpu.arch->tensor_maps) return absl::OkStatus();
  if (gpu.driver->TensorMapEncodeTiled == nullptr) {
    return absl::FailedPreconditionError(
        "the NVIDIA driver cannot describe tensors to the copy engine (cuTensorMapEncodeTiled is missing): "
        "install a newer one");
  }
  ASSIGN_OR_RETURN(const Buffer buffer, memory->Allocate(count * kTensorMapBytes, "tensor maps"));
  std::vector<uint8_t> maps;
  for (const ProgramGrid& grid : program.grids) {
    if (grid.boxes.empty()) continue;
    Node& node = nodes[grid.node];
    node.boxes = buffer.address + maps.size();
    for (const TensorBox& box : grid.boxes) {
      ASSIGN_OR_RETURN(const BoxedOperand operand, OperandOf(program, grid, node, box.operand));
      ASSIGN_OR_RETURN(const TensorMapShape shape, ShapeOf(box, operand));
      const uint32_t steps[5] = {1, 1, 1, 1, 1};
      struct alignas(64) {
        uint8_t bytes[kTensorMapBytes];
      } map;
      RETURN_IF_ERROR(gpu.driver->Check(
          gpu.driver->TensorMapEncodeTiled(&map, kUint64, 5, reinterpret_cast<void*>(operand.address), shape.dims,
                                           shape.strides, shape.box, steps, 0, 0, kPromotion256, 0),
          absl::StrFormat("describing operand %s of grid %s to the copy engine",
                          grid.op->operands[box.operand].name, grid.name)));
      maps.insert(maps.end(), map.bytes, map.bytes + kTensorMapBytes);
    }
  }
  return memory->Upload(buffer.address, maps.data(), static_cast<int64_t>(maps.size()));
}

}  // namespace eventide
