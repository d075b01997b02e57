#include "runtime/tensor_maps.h"

#include <cstring>

#include "absl/strings/str_format.h"
#include "runtime/memory.h"

namespace eventide {
namespace {

// Of cuda.h.
constexpr int kUint64 = 4;       // CU_TENSOR_MAP_DATA_TYPE_UINT64
constexpr int kPromotion256 = 3;  // CU_TENSOR_MAP_L2_PROMOTION_L2_256B

absl::StatusOr<BoxedOperand> OperandOf(const Program& program, const ProgramGrid& grid, const Node& node,
                                       int operand) {
  const TensorRef& ref = node.operands[operand];
  BoxedOperand result;
  result.address = ref.address;
  result.layer_stride = ref.layer_stride;
  result.layers = ref.layer_stride == 0 ? 1 : program.sections[grid.section].layers;
  const int tensor = grid.operands[operand].tensor;
  ASSIGN_OR_RETURN(result.layer_bytes, CapacityBytes(program, tensor));
  // A tensor with layers may be seen at one of them only.
  if (ref.layer_stride != 0) {
    result.layer_bytes = ref.layer_stride;
  } else if (grid.operands[operand].indexed) {
    result.layer_bytes /= *program.tensors[tensor].shape[0].AsConstant();
  }
  return result;
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
      shape.dims[i] = static_cast<uint64_t>(operand.layer_bytes) / box.stride[i - 1];
    }
    if (shape.dims[i] == 0) return absl::InternalError("a box of a tensor without elements");
  }
  shape.dims[4] = static_cast<uint64_t>(operand.layers);
  shape.box[4] = 1;
  // Of one layer any stride will do.
  shape.strides[3] = operand.layer_stride == 0 ? 16 : static_cast<uint64_t>(operand.layer_stride);
  return shape;
}

int64_t TensorMapCount(const Program& program) {
  int64_t count = 0;
  for (const ProgramGrid& grid : program.grids) count += static_cast<int64_t>(grid.boxes.size());
  return count;
}

absl::StatusOr<std::vector<uint8_t>> EncodeTensorMaps(const CudaDriver& driver, const Program& program,
                                                      uint64_t address, absl::Span<Node> nodes) {
  struct alignas(64) Map {
    uint8_t bytes[kTensorMapBytes];
  };
  std::vector<uint8_t> maps;
  for (const ProgramGrid& grid : program.grids) {
    if (grid.boxes.empty()) continue;
    Node& node = nodes[grid.node];
    node.boxes = address + maps.size();
    for (const TensorBox& box : grid.boxes) {
      ASSIGN_OR_RETURN(const BoxedOperand operand, OperandOf(program, grid, node, box.operand));
      ASSIGN_OR_RETURN(const TensorMapShape shape, ShapeOf(box, operand));
      const uint32_t steps[5] = {1, 1, 1, 1, 1};
      Map map;
      RETURN_IF_ERROR(driver.Check(
          driver.TensorMapEncodeTiled(&map, kUint64, 5, reinterpret_cast<void*>(operand.address), shape.dims,
                                      shape.strides, shape.box, steps, 0, 0, kPromotion256, 0),
          absl::StrFormat("describing operand %s of grid %s to the copy engine",
                          grid.op->operands[box.operand].name, grid.name)));
      maps.insert(maps.end(), map.bytes, map.bytes + kTensorMapBytes);
    }
  }
  return maps;
}

}  // namespace eventide
