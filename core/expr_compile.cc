// The postfix form of expressions.
#include "core/expr.h"
#include "core/status.h"

namespace eventide {

namespace {

// i32 arithmetic that wraps, as the device's does; Verify keeps real programs away from the ends.
int32_t Wrapped(int64_t value) {
  return static_cast<int32_t>(static_cast<uint32_t>(value));
}

int32_t Apply(ExprKind kind, int32_t a, int32_t b) {
  const int64_t wide_a = a, wide_b = b;
  switch (kind) {
    case ExprKind::kAdd:
      return Wrapped(wide_a + wide_b);
    case ExprKind::kSub:
      return Wrapped(wide_a - wide_b);
    case ExprKind::kMul:
      return Wrapped(wide_a * wide_b);
    case ExprKind::kFloorDiv:
      return b > 0 ? Wrapped(wide_a / b - (a % b < 0)) : 0;
    case ExprKind::kMod:
      return b > 0 ? a % b + (a % b < 0 ? b : 0) : 0;
    case ExprKind::kMin:
      return a < b ? a : b;
    default:
      return a > b ? a : b;
  }
}

}  // namespace

CompiledExpr::CompiledExpr(const Expr& expr) {
  if (const auto constant = expr.AsConstant()) {
    constant_ = Wrapped(*constant);
    return;
  }
  EVT_CHECK(expr.depth() <= kMaxExprDepth);
  const std::function<void(const Expr&)> emit = [&](const Expr& part) {
    switch (part.kind()) {
      case ExprKind::kConstant:
        code_.push_back({part.kind(), 0, Wrapped(part.constant())});
        return;
      case ExprKind::kSymbol:
      case ExprKind::kCoord:
      case ExprKind::kLayer:
        code_.push_back({part.kind(), part.index(), 0});
        return;
      case ExprKind::kLoad:
        emit(part.a());
        code_.push_back({part.kind(), part.index(), 0});
        return;
      default:
        emit(part.a());
        emit(part.b());
        code_.push_back({part.kind(), 0, 0});
    }
  };
  emit(expr);
}

int32_t CompiledExpr::operator()(const Env& env) const {
  if (code_.empty()) return constant_;
  int32_t stack[kMaxExprDepth + 1];
  int top = 0;  // values on the stack
  for (const Instruction& step : code_) {
    switch (step.kind) {
      case ExprKind::kConstant:
        stack[top++] = step.value;
        break;
      case ExprKind::kSymbol:
        stack[top++] = env.symbols[step.index];
        break;
      case ExprKind::kCoord:
        stack[top++] = env.coords[step.index];
        break;
      case ExprKind::kLayer:
        stack[top++] = env.layer;
        break;
      case ExprKind::kLoad:
        stack[top - 1] = env.load(env.context, step.index, stack[top - 1]);
        break;
      default:
        --top;
        stack[top - 1] = Apply(step.kind, stack[top - 1], stack[top]);
    }
  }
  return stack[0];
}

}  // namespace eventide
