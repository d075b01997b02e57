// Interval arithmetic over expressions.
#include <algorithm>
#include <limits>

#include "core/expr.h"

namespace eventide {
namespace {

int64_t Floor(int64_t a, int64_t b) {
  const int64_t quotient = a / b;
  return a % b < 0 ? quotient - 1 : quotient;
}

Interval Hull(std::initializer_list<int64_t> values) {
  return {std::min(values), std::max(values)};
}

Interval Divide(Interval a, Interval b) {
  // A divisor that is not positive evaluates to 0: cover it, and the positive part of the divisor.
  if (b.high <= 0) return {0, 0};
  const int64_t low = std::max<int64_t>(b.low, 1);
  Interval result =
      Hull({Floor(a.low, low), Floor(a.low, b.high), Floor(a.high, low), Floor(a.high, b.high)});
  if (b.low <= 0) result = Hull({result.low, result.high, 0});
  return result;
}

Interval Modulo(Interval a, Interval b) {
  if (b.high <= 0) return {0, 0};
  // Inside one period of a constant divisor the remainder is the distance to the period's start.
  if (b.low == b.high && Floor(a.low, b.low) == Floor(a.high, b.low)) {
    const int64_t start = SaturatingMul(Floor(a.low, b.low), b.low);
    return {a.low - start, a.high - start};
  }
  int64_t high = b.high - 1;
  if (a.low >= 0) high = std::min(high, a.high);
  return {0, high};
}

}  // namespace

Interval Bound(const Expr& expr, const BoundEnv& env) {
  switch (expr.kind()) {
    case ExprKind::kConstant:
      return {expr.constant(), expr.constant()};
    case ExprKind::kSymbol:
    case ExprKind::kCoord:
    case ExprKind::kLayer:
    case ExprKind::kLoad:
      return env.leaf(expr);
    default:
      break;
  }
  const Interval a = Bound(expr.a(), env), b = Bound(expr.b(), env);
  switch (expr.kind()) {
    case ExprKind::kAdd:
      return {SaturatingAdd(a.low, b.low), SaturatingAdd(a.high, b.high)};
    case ExprKind::kSub:
      return {SaturatingSub(a.low, b.high), SaturatingSub(a.high, b.low)};
    case ExprKind::kMul:
      return Hull({SaturatingMul(a.low, b.low), SaturatingMul(a.low, b.high),
                   SaturatingMul(a.high, b.low), SaturatingMul(a.high, b.high)});
    case ExprKind::kFloorDiv:
      return Divide(a, b);
    case ExprKind::kMod:
      return Modulo(a, b);
    case ExprKind::kMin:
      return {std::min(a.low, b.low), std::min(a.high, b.high)};
    default:
      return {std::max(a.low, b.low), std::max(a.high, b.high)};
  }
}

}  // namespace eventide
