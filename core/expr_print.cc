// Expressions as text: for people, and for compilers.
#include "absl/strings/str_cat.h"
#include "core/expr.h"

namespace eventide {
namespace {

// Binding strength of what is printed: sums, products, everything else.
enum Strength { kSum = 1, kProduct = 2, kAtom = 3 };

std::string Print(const Expr& expr, const ExprNames& names, int at_least);

std::string Infix(const Expr& a, const char* sign, const Expr& b, const ExprNames& names,
                  int strength, int at_least) {
  std::string text = absl::StrCat(Print(a, names, strength), sign, Print(b, names, strength + 1));
  return strength < at_least ? absl::StrCat("(", text, ")") : text;
}

// ceil(x / c) is built as (x + (c - 1)) / c.
bool IsCeil(const Expr& expr) {
  if (expr.kind() != ExprKind::kFloorDiv || expr.a().kind() != ExprKind::kAdd) return false;
  const auto divisor = expr.b().AsConstant(), added = expr.a().b().AsConstant();
  return divisor && added && *divisor > 1 && *added == *divisor - 1;
}

std::string Print(const Expr& expr, const ExprNames& names, int at_least) {
  switch (expr.kind()) {
    case ExprKind::kConstant:
      return absl::StrCat(expr.constant());
    case ExprKind::kSymbol:
    case ExprKind::kCoord:
    case ExprKind::kLayer:
    case ExprKind::kLoad:
      return names.leaf(expr);
    case ExprKind::kAdd:
      if (const auto added = expr.b().AsConstant(); added && *added < 0 && *added != INT64_MIN)
        return Infix(expr.a(), " - ", Expr(-*added), names, kSum, at_least);
      return Infix(expr.a(), " + ", expr.b(), names, kSum, at_least);
    case ExprKind::kSub:
      return Infix(expr.a(), " - ", expr.b(), names, kSum, at_least);
    case ExprKind::kMul:
      return Infix(expr.a(), " * ", expr.b(), names, kProduct, at_least);
    case ExprKind::kMod:
      return Infix(expr.a(), " % ", expr.b(), names, kProduct, at_least);
    case ExprKind::kFloorDiv:
      if (IsCeil(expr)) {
        return absl::StrCat("ceil(", Print(expr.a().a(), names, kProduct), " / ",
                            Print(expr.b(), names, kAtom), ")");
      }
      return absl::StrCat("floor(", Print(expr.a(), names, kProduct), " / ",
                          Print(expr.b(), names, kAtom), ")");
    case ExprKind::kMin:
    case ExprKind::kMax:
      return absl::StrCat(expr.kind() == ExprKind::kMin ? "min(" : "max(",
                          Print(expr.a(), names, kSum), ", ", Print(expr.b(), names, kSum), ")");
  }
  return "?";
}

}  // namespace

std::string ToString(const Expr& expr, const ExprNames& names) {
  return Print(expr, names, kSum);
}

// Every operation is parenthesised or a call; negative constants too, so that "a - -1" cannot
// appear. CeilDiv of device/base.h is not printed: it differs from the language for negative
// numerators.
std::string ToCpp(const Expr& expr, const ExprNames& names) {
  const auto call = [&](const char* function) {
    return absl::StrCat(function, "(", ToCpp(expr.a(), names), ", ", ToCpp(expr.b(), names), ")");
  };
  const auto infix = [&](const char* sign) {
    return absl::StrCat("(", ToCpp(expr.a(), names), sign, ToCpp(expr.b(), names), ")");
  };
  switch (expr.kind()) {
    case ExprKind::kConstant:
      return expr.constant() < 0 ? absl::StrCat("(", expr.constant(), ")")
                                 : absl::StrCat(expr.constant());
    case ExprKind::kSymbol:
    case ExprKind::kCoord:
    case ExprKind::kLayer:
    case ExprKind::kLoad:
      return names.leaf(expr);
    case ExprKind::kAdd:
      return infix(" + ");
    case ExprKind::kSub:
      return infix(" - ");
    case ExprKind::kMul:
      return infix(" * ");
    case ExprKind::kFloorDiv:
      return call("FloorDiv");
    case ExprKind::kMod:
      return call("FloorMod");
    case ExprKind::kMin:
      return call("Min");
    case ExprKind::kMax:
      return call("Max");
  }
  return "0";
}

}  // namespace eventide
