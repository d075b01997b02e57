// Where a program's tensors live: one arena per lifetime, laid out once from the symbols' maxima,
// so that nothing is allocated during a step; and the node records that follow from the addresses.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "core/program.h"
#include "device/abi.h"
#include "runtime/executor.h"

namespace eventide {

inline constexpr int kArenas = 5;                 // one per TensorRole
inline constexpr int64_t kTensorAlignment = 256;  // bytes

struct TensorPlace {
  int arena = 0;  // TensorRole
  int64_t offset = 0;
  int64_t bytes = 0;  // at the symbols' maxima
};

struct MemoryPlan {
  std::vector<TensorPlace> tensors;  // by tensor index
  std::array<int64_t, kArenas> bytes = {};
};

// `placed[i]`: tensor i lives in the caller's memory and takes no room in its arena (may be empty).
absl::StatusOr<MemoryPlan> PlanMemory(const Program& program, const std::vector<bool>& placed);

// Says what takes how much of `place`'s memory ("Fake GPU", "this machine"), how much is free, and which of
// the command line's flags make the largest part that can shrink smaller.
absl::Status TooLittleMemory(const Program& program, const MemoryPlan& plan, const std::string& place,
                             int64_t free);

// Whether the tensor is there, may be placed and has data.
absl::Status CheckPlaced(const Program& program, const PlacedTensor& place);

// Where an operand of a grid lies in its tensor, in bytes: what layer 0 sees, how far on each further layer's part is
// (0: all see the same), and how much each sees.
struct OperandPlace {
  int64_t offset = 0, layer_stride = 0, layer_bytes = 0;
};
absl::StatusOr<OperandPlace> PlaceOf(const Program& program, const ProgramGrid& grid, const Operand& operand);

// Node records of all grids but gates, in ProgramGrid::node order. `addresses[i]` is where tensor i begins,
// `policies[g]` is the PolicyId of grid g.
absl::StatusOr<std::vector<Node>> BuildNodes(const Program& program,
                                             absl::Span<const uint64_t> addresses,
                                             absl::Span<const uint32_t> policies);

// Checks what the host says about a step against the program, before anything is enqueued.
absl::Status CheckStep(const Program& program, const StepHeader& header);

}  // namespace eventide
