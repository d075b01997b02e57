// Expressions: folding keeps values; the compiled form, what the printed C++ means, and the bounds
// agree with evaluation.
#include "core/expr.h"

#include <random>

#include "absl/strings/str_cat.h"
#include "core/names.h"
#include "device/base.h"
#include "tests/support/test.h"

namespace eventide {
namespace {

constexpr int kSymbols = 3, kCoords = 2;

// A second, naive representation of the same random expression: a tree evaluated without any
// folding.
struct Tree {
  ExprKind kind;
  int64_t value = 0;
  std::vector<Tree> parts;
};

int64_t Floor(int64_t a, int64_t b) {
  return a / b - (a % b < 0);
}

int64_t Naive(const Tree& t, const int64_t* symbols, const int64_t* coords, int64_t layer) {
  const auto part = [&](int i) { return Naive(t.parts[i], symbols, coords, layer); };
  switch (t.kind) {
    case ExprKind::kConstant:
      return t.value;
    case ExprKind::kSymbol:
      return symbols[t.value];
    case ExprKind::kCoord:
      return coords[t.value];
    case ExprKind::kLayer:
      return layer;
    case ExprKind::kLoad:
      return (part(0) * 7 + t.value) % 11;
    case ExprKind::kAdd:
      return part(0) + part(1);
    case ExprKind::kSub:
      return part(0) - part(1);
    case ExprKind::kMul:
      return part(0) * part(1);
    case ExprKind::kFloorDiv:
      return Floor(part(0), part(1));
    case ExprKind::kMod:
      return part(0) - Floor(part(0), part(1)) * part(1);
    case ExprKind::kMin:
      return std::min(part(0), part(1));
    case ExprKind::kMax:
      return std::max(part(0), part(1));
  }
  return 0;
}

Tree RandomTree(std::mt19937_64& random, int depth) {
  const auto below = [&](int n) { return static_cast<int>(random() % n); };
  if (depth == 0 || below(5) == 0) {
    switch (below(5)) {
      case 0:
        return {ExprKind::kSymbol, below(kSymbols), {}};
      case 1:
        return {ExprKind::kCoord, below(kCoords), {}};
      case 2:
        return {ExprKind::kLayer, 0, {}};
      case 3:
        return {ExprKind::kLoad, below(3), {RandomTree(random, 0)}};
      default:
        return {ExprKind::kConstant, below(9) - 3, {}};
    }
  }
  const ExprKind kinds[] = {ExprKind::kAdd, ExprKind::kSub, ExprKind::kMul, ExprKind::kFloorDiv,
                            ExprKind::kMod, ExprKind::kMin, ExprKind::kMax};
  const ExprKind kind = kinds[below(7)];
  Tree tree{kind, 0, {RandomTree(random, depth - 1)}};
  if (kind == ExprKind::kFloorDiv || kind == ExprKind::kMod) {
    tree.parts.push_back({ExprKind::kConstant, 1 + below(6), {}});
  } else if (kind == ExprKind::kMul) {
    tree.parts.push_back({ExprKind::kConstant, below(5) - 1, {}});
  } else {
    tree.parts.push_back(RandomTree(random, depth - 1));
  }
  return tree;
}

Expr Build(const Tree& t) {
  switch (t.kind) {
    case ExprKind::kConstant:
      return Expr(t.value);
    case ExprKind::kSymbol:
      return Expr::Symbol(static_cast<int>(t.value));
    case ExprKind::kCoord:
      return Expr::Coord(static_cast<int>(t.value));
    case ExprKind::kLayer:
      return Expr::Layer();
    case ExprKind::kLoad:
      return Expr::Load(static_cast<int>(t.value), Build(t.parts[0]));
    default:
      return Expr::Binary(t.kind, Build(t.parts[0]), Build(t.parts[1]));
  }
}

// Reads the C++ that ToCpp prints and evaluates it with device/base.h: calls, infix in parentheses,
// numbers, and leaves spelled as s0, t0, layer, load0(...).
class Cpp {
 public:
  Cpp(const std::string& text, const int64_t* symbols, const int64_t* coords, int64_t layer)
      : text_(text), symbols_(symbols), coords_(coords), layer_(layer) {}
  i32 All() {
    const i32 value = Term();
    REQUIRE(at_ == text_.size());
    return value;
  }

 private:
  bool Eat(const std::string& word) {
    if (text_.compare(at_, word.size(), word) != 0) return false;
    at_ += word.size();
    return true;
  }
  i32 Number() {
    const bool negative = Eat("-");
    i32 value = 0;
    REQUIRE(at_ < text_.size());
    REQUIRE(std::isdigit(static_cast<unsigned char>(text_[at_])));
    while (at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_])))
      value = value * 10 + (text_[at_++] - '0');
    return negative ? -value : value;
  }
  i32 Term() {
    for (const char* name : {"FloorDiv", "FloorMod", "Min", "Max"}) {
      if (!Eat(absl::StrCat(name, "("))) continue;
      const i32 a = Term();
      REQUIRE(Eat(", "));
      const i32 b = Term();
      REQUIRE(Eat(")"));
      const std::string which = name;
      return which == "FloorDiv"   ? FloorDiv(a, b)
             : which == "FloorMod" ? FloorMod(a, b)
             : which == "Min"      ? Min(a, b)
                                   : Max(a, b);
    }
    if (Eat("layer")) return static_cast<i32>(layer_);
    if (Eat("load")) {
      const i32 tensor = Number();
      REQUIRE(Eat("("));
      const i32 element = Term();
      REQUIRE(Eat(")"));
      return (element * 7 + tensor) % 11;
    }
    if (Eat("s")) return static_cast<i32>(symbols_[Number()]);
    if (Eat("t")) return static_cast<i32>(coords_[Number()]);
    if (!Eat("(")) return Number();
    if (text_[at_] == '-') {
      const i32 constant = Number();
      REQUIRE(Eat(")"));
      return constant;
    }
    i32 value = Term();
    if (Eat(" + ")) {
      value += Term();
    } else if (Eat(" - ")) {
      value -= Term();
    } else {
      REQUIRE(Eat(" * "));
      value *= Term();
    }
    REQUIRE(Eat(")"));
    return value;
  }

  const std::string& text_;
  size_t at_ = 0;
  const int64_t* symbols_;
  const int64_t* coords_;
  int64_t layer_;
};

std::string CppText(const Expr& expr) {
  ExprNames names;
  names.leaf = [](const Expr& leaf) -> std::string {
    switch (leaf.kind()) {
      case ExprKind::kSymbol:
        return absl::StrCat("s", leaf.index());
      case ExprKind::kCoord:
        return absl::StrCat("t", leaf.index());
      case ExprKind::kLayer:
        return "layer";
      default:
        return absl::StrCat("load", leaf.index(), "(", CppText(leaf.a()), ")");
    }
  };
  return ToCpp(expr, names);
}

TEST_CASE("folded, compiled and printed expressions mean what was written, and bounds hold") {
  std::mt19937_64 random(42);
  int folded = 0;
  for (int round = 0; round < 4000; ++round) {
    const Tree tree = RandomTree(random, 1 + round % 5);
    const Expr expr = Build(tree);
    const CompiledExpr compiled(expr);
    const std::string cpp = CppText(expr);
    folded += expr.AsConstant().has_value();
    // Bounds over all values that the leaves take below.
    const Interval bound =
        Bound(expr, {[](const Expr& leaf) -> Interval {
                return leaf.kind() == ExprKind::kLoad ? Interval{-10, 10} : Interval{0, 12};
              }});
    for (int draw = 0; draw < 12; ++draw) {
      int64_t symbols[kSymbols], coords[kCoords];
      int32_t symbols32[kSymbols], coords32[kCoords];
      for (int i = 0; i < kSymbols; ++i)
        symbols32[i] = static_cast<int32_t>(symbols[i] = random() % 13);
      for (int i = 0; i < kCoords; ++i)
        coords32[i] = static_cast<int32_t>(coords[i] = random() % 13);
      const int64_t layer = random() % 4;
      const int64_t expected = Naive(tree, symbols, coords, layer);
      ExprEnv env{symbols, coords, layer,
                  [](int tensor, int64_t element) { return (element * 7 + tensor) % 11; }};
      INFO(cpp);
      REQUIRE(Evaluate(expr, env) == expected);
      const CompiledExpr::Env fast{symbols32, coords32, static_cast<int32_t>(layer),
                                   [](void*, int tensor, int64_t element) {
                                     return static_cast<int32_t>((element * 7 + tensor) % 11);
                                   },
                                   nullptr};
      REQUIRE(compiled(fast) == expected);
      REQUIRE(Cpp(cpp, symbols, coords, layer).All() == expected);
      REQUIRE(bound.low <= expected);
      REQUIRE(expected <= bound.high);
    }
  }
  CHECK(folded < 2000);
}

TEST_CASE("constants and neutral elements fold away") {
  const Expr s = Expr::Symbol(0);
  CHECK((s + 0).Equals(s));
  CHECK((s * 1).Equals(s));
  CHECK((s * 0).AsConstant() == 0);
  CHECK((s / 1).Equals(s));
  CHECK((s % 1).AsConstant() == 0);
  CHECK((s - s).AsConstant() == 0);
  CHECK(((s + 3) - (s + 1)).AsConstant() == 2);
  CHECK((s + 2 + 3).Equals(s + 5));
  CHECK((Expr(2) + s).Equals(s + 2));
  CHECK((s * 8 / 4).Equals(s * 2));
  CHECK((s / 4 / 8).Equals(s / 32));
  CHECK(Min(Min(s, 9), 4).Equals(Min(s, 4)));
  CHECK(Max(s, s).Equals(s));
  CHECK(CeilDiv(Expr(7), 4).AsConstant() == 2);
  CHECK((Expr(-1) / 4).AsConstant() == -1);
  CHECK((Expr(-1) % 4).AsConstant() == 3);
}

TEST_CASE("arithmetic at the ends of int64 saturates and is not folded") {
  const Expr most = INT64_MAX;
  const Expr sum = most + Expr::Symbol(0) + 1;
  const int64_t one = 1;
  ExprEnv env;
  env.symbols = &one;
  CHECK(Evaluate(sum, env) == INT64_MAX);
  CHECK(!(most + 1).AsConstant().has_value());
  CHECK(Evaluate(most + 1, env) == INT64_MAX);
  CHECK(Evaluate(most * -2, env) == INT64_MIN);
  const Interval bound = Bound(Expr::Symbol(0) * Expr::Symbol(0), {[](const Expr&) {
                                 return Interval{0, INT64_MAX};
                               }});
  CHECK(bound.low == 0);
  CHECK(bound.high == INT64_MAX);
}

TEST_CASE("people read ceilings, floors and signs") {
  const std::vector<SymbolDecl> symbols = {{"tokens", 0, 9}, {"rows", 0, 9}};
  const std::vector<TensorDecl> tensors;
  const Names names = {&symbols, &tensors, 't'};
  const Expr tokens = Expr::Symbol(0), rows = Expr::Symbol(1);
  CHECK(ExprText(names, CeilDiv(tokens, 32)) == "ceil(tokens / 32)");
  CHECK(ExprText(names, (tokens + rows) * 2 - 1) == "(tokens + rows) * 2 - 1");
  CHECK(ExprText(names, Expr::Coord(0) / 16) == "floor(t0 / 16)");
  CHECK(ExprText(names, Min(tokens, rows - 3)) == "min(tokens, rows - 3)");
  CHECK(ExprText(names, tokens - (rows - tokens)) == "tokens - (rows - tokens)");
}

}  // namespace
}  // namespace eventide
