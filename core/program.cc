#include "core/program.h"

#include "absl/strings/str_format.h"
#include "device/base.h"

namespace eventide {

int64_t Program::BankBytes() const {
  return (event_elements + ticket_counters) * int64_t{kEventStrideBytes};
}

absl::StatusOr<int64_t> CapacityBytes(const Program& program, int tensor) {
  const TensorDecl& decl = program.tensors[tensor];
  int64_t bytes = static_cast<int64_t>(DTypeSize(decl.dtype));
  const BoundEnv env = {[&](const Expr& leaf) -> Interval {
    if (leaf.kind() == ExprKind::kSymbol)
      return {program.symbols[leaf.index()].min, program.symbols[leaf.index()].max};
    return {0, 0};
  }};
  for (const Expr& dim : decl.shape) {
    const Interval bound = Bound(dim, env);
    if (bound.low < 0 || __builtin_mul_overflow(bytes, bound.high, &bytes)) {
      return absl::InvalidArgumentError(
          absl::StrFormat("tensor %s: a dim may be negative, or its size exceeds 2^63", decl.name));
    }
  }
  return bytes;
}

}  // namespace eventide
