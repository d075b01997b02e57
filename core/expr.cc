#include "core/expr.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/status.h"

namespace eventide {

enum Leaves : uint8_t { kHasSymbol = 1, kHasCoord = 2, kHasLayer = 4, kHasLoad = 8 };

struct Expr::Node {
  ExprKind kind;
  uint8_t leaves = 0;
  int depth = 1;
  int64_t value = 0;           // constant, or the leaf's index
  std::vector<Expr> operands;  // a, b; the flat element of a Load
  std::vector<Expr> load_index;
};

int64_t SaturatingAdd(int64_t a, int64_t b) {
  int64_t result;
  if (!__builtin_add_overflow(a, b, &result)) return result;
  return a < 0 ? std::numeric_limits<int64_t>::min() : std::numeric_limits<int64_t>::max();
}

int64_t SaturatingSub(int64_t a, int64_t b) {
  int64_t result;
  if (!__builtin_sub_overflow(a, b, &result)) return result;
  return a < 0 ? std::numeric_limits<int64_t>::min() : std::numeric_limits<int64_t>::max();
}

int64_t SaturatingMul(int64_t a, int64_t b) {
  int64_t result;
  if (!__builtin_mul_overflow(a, b, &result)) return result;
  return (a < 0) != (b < 0) ? std::numeric_limits<int64_t>::min()
                            : std::numeric_limits<int64_t>::max();
}

namespace {

// Rounds toward minus infinity; b > 0.
int64_t FloorDiv64(int64_t a, int64_t b) {
  const int64_t quotient = a / b;
  return a % b < 0 ? quotient - 1 : quotient;
}

int64_t Apply(ExprKind kind, int64_t a, int64_t b) {
  switch (kind) {
    case ExprKind::kAdd:
      return SaturatingAdd(a, b);
    case ExprKind::kSub:
      return SaturatingSub(a, b);
    case ExprKind::kMul:
      return SaturatingMul(a, b);
    case ExprKind::kFloorDiv:
      return b > 0 ? FloorDiv64(a, b) : 0;
    case ExprKind::kMod:
      return b > 0 ? a - FloorDiv64(a, b) * b : 0;
    case ExprKind::kMin:
      return std::min(a, b);
    default:
      return std::max(a, b);
  }
}

bool IsCommutative(ExprKind kind) {
  return kind == ExprKind::kAdd || kind == ExprKind::kMul || kind == ExprKind::kMin ||
         kind == ExprKind::kMax;
}

bool IsLeaf(ExprKind kind) {
  return kind <= ExprKind::kLoad;
}

}  // namespace

Expr::Expr(int64_t constant) {
  auto node = std::make_shared<Node>();
  node->kind = ExprKind::kConstant;
  node->value = constant;
  node_ = std::move(node);
}

namespace {

std::shared_ptr<Expr::Node> MakeLeaf(ExprKind kind, int index, uint8_t leaves) {
  auto node = std::make_shared<Expr::Node>();
  node->kind = kind;
  node->value = index;
  node->leaves = leaves;
  return node;
}

}  // namespace

Expr Expr::Symbol(int index) {
  return Expr(MakeLeaf(ExprKind::kSymbol, index, kHasSymbol));
}
Expr Expr::Coord(int index) {
  return Expr(MakeLeaf(ExprKind::kCoord, index, kHasCoord));
}
Expr Expr::Layer() {
  return Expr(MakeLeaf(ExprKind::kLayer, 0, kHasLayer));
}

Expr Expr::Load(int tensor, Expr element) {
  return Load(tensor, element, {element});
}

Expr Expr::Load(int tensor, Expr element, std::vector<Expr> index) {
  auto node = MakeLeaf(ExprKind::kLoad, tensor, kHasLoad);
  node->leaves |= element.node_->leaves;
  node->depth = element.depth() + 1;
  for (const Expr& part : index) node->leaves |= part.node_->leaves;
  node->operands = {std::move(element)};
  node->load_index = std::move(index);
  return Expr(std::move(node));
}

namespace {

// What the operation is when one operand is the constant on the right; nothing when it stays.
std::optional<Expr> FoldRight(ExprKind kind, const Expr& a, int64_t c) {
  switch (kind) {
    case ExprKind::kAdd:
    case ExprKind::kSub:
      if (c == 0) return a;
      break;
    case ExprKind::kMul: {
      if (c == 0) return Expr(0);
      if (c == 1) return a;
      // (x + k) * c is x * c + k * c, so that differences of tiles' ends fold.
      int64_t product;
      if (a.kind() == ExprKind::kAdd && a.b().AsConstant() &&
          !__builtin_mul_overflow(*a.b().AsConstant(), c, &product))
        return a.a() * Expr(c) + Expr(product);
      break;
    }
    case ExprKind::kFloorDiv:
      if (c == 1) return a;
      // (x * k) / c where c divides k.
      if (c > 1 && a.kind() == ExprKind::kMul) {
        const auto k = a.b().AsConstant();
        if (k && *k % c == 0) return a.a() * Expr(*k / c);
      }
      break;
    case ExprKind::kMod:
      if (c == 1) return Expr(0);
      break;
    default:
      break;
  }
  return std::nullopt;
}

// (x op c1) op c2 for chains of one operation: sums, products, nested divisions, minima and maxima.
std::optional<Expr> FoldChain(ExprKind kind, const Expr& a, int64_t c) {
  if (IsLeaf(a.kind())) return std::nullopt;
  const auto inner = a.b().AsConstant();
  if (!inner) return std::nullopt;
  int64_t sum;
  if (a.kind() == kind && (kind == ExprKind::kMin || kind == ExprKind::kMax))
    return Expr::Binary(kind, a.a(), Expr(Apply(kind, *inner, c)));
  if (a.kind() == kind && kind == ExprKind::kAdd && !__builtin_add_overflow(*inner, c, &sum))
    return a.a() + Expr(sum);
  const bool product =
      kind == ExprKind::kMul || (kind == ExprKind::kFloorDiv && c > 0 && *inner > 0);
  if (a.kind() == kind && product && !__builtin_mul_overflow(*inner, c, &sum))
    return Expr::Binary(kind, a.a(), Expr(sum));
  return std::nullopt;
}

bool FoldsToConstant(ExprKind kind, int64_t a, int64_t b, int64_t* result) {
  switch (kind) {
    case ExprKind::kAdd:
      return !__builtin_add_overflow(a, b, result);
    case ExprKind::kSub:
      return !__builtin_sub_overflow(a, b, result);
    case ExprKind::kMul:
      return !__builtin_mul_overflow(a, b, result);
    case ExprKind::kFloorDiv:
    case ExprKind::kMod:
      if (b <= 0) return false;
      break;
    default:
      break;
  }
  *result = Apply(kind, a, b);
  return true;
}

}  // namespace

Expr Expr::Binary(ExprKind kind, Expr a, Expr b) {
  EVT_CHECK(!IsLeaf(kind));
  auto left = a.AsConstant(), right = b.AsConstant();
  int64_t folded;
  if (left && right && FoldsToConstant(kind, *left, *right, &folded)) return Expr(folded);
  if (left && !right && IsCommutative(kind)) {
    std::swap(a, b);
    std::swap(left, right);
  }
  // Subtracting a constant is adding its negative, so that chains fold.
  if (kind == ExprKind::kSub && right && *right != std::numeric_limits<int64_t>::min())
    return Binary(ExprKind::kAdd, std::move(a), Expr(-*right));
  if (right) {
    if (auto simple = FoldRight(kind, a, *right)) return *simple;
    if (auto simple = FoldChain(kind, a, *right)) return *simple;
  }
  if (left && *left == 0 && (kind == ExprKind::kMod || kind == ExprKind::kFloorDiv)) return Expr(0);
  if (a.Equals(b)) {
    if (kind == ExprKind::kMin || kind == ExprKind::kMax) return a;
    if (kind == ExprKind::kSub) return Expr(0);
  }
  // (x + c) - x, and (x + c) - (x + d).
  if (kind == ExprKind::kSub) {
    const auto split = [](const Expr& e) -> std::pair<Expr, int64_t> {
      if (e.kind() == ExprKind::kAdd)
        if (auto c = e.b().AsConstant()) return {e.a(), *c};
      return {e, 0};
    };
    const auto [base_a, add_a] = split(a);
    const auto [base_b, add_b] = split(b);
    int64_t difference;
    if (base_a.Equals(base_b) && !__builtin_sub_overflow(add_a, add_b, &difference))
      return Expr(difference);
  }
  auto node = std::make_shared<Node>();
  node->kind = kind;
  node->leaves = a.node_->leaves | b.node_->leaves;
  node->depth = 1 + std::max(a.depth(), b.depth());
  node->operands = {std::move(a), std::move(b)};
  return Expr(std::move(node));
}

ExprKind Expr::kind() const {
  return node_->kind;
}
int64_t Expr::constant() const {
  EVT_CHECK(kind() == ExprKind::kConstant);
  return node_->value;
}
int Expr::index() const {
  return static_cast<int>(node_->value);
}
Expr Expr::a() const {
  return node_->operands[0];
}
Expr Expr::b() const {
  return node_->operands[1];
}
const std::vector<Expr>& Expr::load_index() const {
  return node_->load_index;
}
int Expr::depth() const {
  return node_->depth;
}
std::optional<int64_t> Expr::AsConstant() const {
  if (kind() != ExprKind::kConstant) return std::nullopt;
  return node_->value;
}
bool Expr::HasLoad() const {
  return node_->leaves & kHasLoad;
}
bool Expr::HasCoord() const {
  return node_->leaves & kHasCoord;
}
bool Expr::HasLayer() const {
  return node_->leaves & kHasLayer;
}
bool Expr::HasSymbol() const {
  return node_->leaves & kHasSymbol;
}

bool Expr::Equals(const Expr& other) const {
  if (node_ == other.node_) return true;
  if (node_->kind != other.node_->kind || node_->value != other.node_->value ||
      node_->depth != other.node_->depth || node_->operands.size() != other.node_->operands.size())
    return false;
  for (size_t i = 0; i < node_->operands.size(); ++i) {
    if (!node_->operands[i].Equals(other.node_->operands[i])) return false;
  }
  return true;
}

Expr Expr::Substitute(const std::function<std::optional<Expr>(const Expr&)>& leaf) const {
  if (kind() == ExprKind::kConstant) return *this;
  if (IsLeaf(kind())) {
    if (auto replaced = leaf(*this)) return *replaced;
    if (kind() != ExprKind::kLoad) return *this;
    std::vector<Expr> index;
    for (const Expr& part : load_index()) index.push_back(part.Substitute(leaf));
    return Load(this->index(), a().Substitute(leaf), std::move(index));
  }
  Expr left = a().Substitute(leaf), right = b().Substitute(leaf);
  if (left.node_ == node_->operands[0].node_ && right.node_ == node_->operands[1].node_)
    return *this;
  return Binary(kind(), std::move(left), std::move(right));
}

Expr operator+(const Expr& a, const Expr& b) {
  return Expr::Binary(ExprKind::kAdd, a, b);
}
Expr operator-(const Expr& a, const Expr& b) {
  return Expr::Binary(ExprKind::kSub, a, b);
}
Expr operator*(const Expr& a, const Expr& b) {
  return Expr::Binary(ExprKind::kMul, a, b);
}
Expr FloorDiv(const Expr& a, const Expr& b) {
  return Expr::Binary(ExprKind::kFloorDiv, a, b);
}
Expr operator/(const Expr& a, const Expr& b) {
  return FloorDiv(a, b);
}
Expr operator%(const Expr& a, const Expr& b) {
  return Expr::Binary(ExprKind::kMod, a, b);
}
Expr CeilDiv(const Expr& a, const Expr& b) {
  return FloorDiv(a + (b - 1), b);
}
Expr Min(const Expr& a, const Expr& b) {
  return Expr::Binary(ExprKind::kMin, a, b);
}
Expr Max(const Expr& a, const Expr& b) {
  return Expr::Binary(ExprKind::kMax, a, b);
}

void Visit(const Expr& expr, const std::function<void(const Expr&)>& visit) {
  visit(expr);
  if (expr.kind() == ExprKind::kLoad) {
    Visit(expr.a(), visit);
    for (const Expr& part : expr.load_index()) Visit(part, visit);
  } else if (!IsLeaf(expr.kind())) {
    Visit(expr.a(), visit);
    Visit(expr.b(), visit);
  }
}

int64_t Evaluate(const Expr& expr, const ExprEnv& env) {
  switch (expr.kind()) {
    case ExprKind::kConstant:
      return expr.constant();
    case ExprKind::kSymbol:
      return env.symbols[expr.index()];
    case ExprKind::kCoord:
      return env.coords[expr.index()];
    case ExprKind::kLayer:
      return env.layer;
    case ExprKind::kLoad:
      return env.load(expr.index(), Evaluate(expr.a(), env));
    default:
      return Apply(expr.kind(), Evaluate(expr.a(), env), Evaluate(expr.b(), env));
  }
}

}  // namespace eventide
