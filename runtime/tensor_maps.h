// Tensor maps of a program's boxes (device/op.h): with one, a GPU's copy engine fills a page by one instruction.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "core/program.h"
#include "core/status.h"
#include "device/abi.h"
#include "runtime/cuda_device.h"
#include "runtime/cuda_memory.h"

namespace eventide {

// What a box's operand is: where it begins, its layers, how far apart they are (0: one for all), and bytes of one.
struct BoxedOperand {
  uint64_t address;
  int64_t layers, layer_stride, layer_bytes;
};

// The dims and strides of a box's tensor in the driver's terms: counts that the box leaves open are those that fit
// the operand.
struct TensorMapShape {
  uint64_t dims[5];     // of 8-byte elements, then counts
  uint64_t strides[4];  // bytes, of dims 1 to 4
  uint32_t box[5];
};
absl::StatusOr<TensorMapShape> ShapeOf(const TensorBox& box, const BoxedOperand& operand);

// Makes the maps of all nodes and uploads them; nodes learn where theirs are. Nothing where kernels use none.
absl::Status DescribeBoxes(const CudaDevice& gpu, const Program& program, CudaMemory* memory,
                           absl::Span<Node> nodes);

}  // namespace eventide
