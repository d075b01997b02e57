// Integer expressions over symbols, task coordinates, the layer and device-resident values. Shapes,
// extents, edge maps and targets are all made of these: built and folded here, bounded by Verify,
// evaluated by the CPU backend and the simulator, printed as C++ for the megakernel.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/base.h"

namespace eventide {

enum class ExprKind : uint8_t {
  kConstant,
  kSymbol,   // index: the graph's symbol
  kCoord,    // index: coordinate of the task (or of the event element, in a target)
  kLayer,    // the layer of the task
  kLoad,     // i32 read from a device tensor: index = tensor, operand a = element index
  kAdd,
  kSub,
  kMul,
  kFloorDiv,  // rounds toward minus infinity; divisor > 0
  kMod,       // of kFloorDiv
  kMin,
  kMax,
};

// An immutable expression; copies share structure. Construction folds constants and neutral elements.
class Expr {
 public:
  Expr() : Expr(0) {}
  Expr(int64_t constant);  // NOLINT: a constant is an expression wherever one is asked for
  Expr(int constant) : Expr(static_cast<int64_t>(constant)) {}  // NOLINT

  static Expr Symbol(int index);
  static Expr Coord(int index);
  static Expr Layer();
  // `index` is the element's index in each dim; `element` is the same, flattened row-major.
  static Expr Load(int tensor, Expr element, std::vector<Expr> index);
  static Expr Load(int tensor, Expr element);
  static Expr Binary(ExprKind kind, Expr a, Expr b);

  ExprKind kind() const;
  int64_t constant() const;  // kConstant
  int index() const;         // kSymbol, kCoord, kLoad (the tensor)
  Expr a() const;
  Expr b() const;
  const std::vector<Expr>& load_index() const;  // kLoad
  int depth() const;                            // 1 for a leaf
  std::optional<int64_t> AsConstant() const;
  bool HasLoad() const;
  bool HasCoord() const;
  bool HasLayer() const;
  bool HasSymbol() const;
  bool Equals(const Expr& other) const;  // same structure after folding

  // Replaces leaves for which `leaf` returns a value; a Load that stays gets its index replaced.
  Expr Substitute(const std::function<std::optional<Expr>(const Expr&)>& leaf) const;

  struct Node;

 private:
  explicit Expr(std::shared_ptr<const Node> node) : node_(std::move(node)) {}
  std::shared_ptr<const Node> node_;
};

Expr operator+(const Expr& a, const Expr& b);
Expr operator-(const Expr& a, const Expr& b);
Expr operator*(const Expr& a, const Expr& b);
Expr FloorDiv(const Expr& a, const Expr& b);
Expr operator/(const Expr& a, const Expr& b);  // FloorDiv
Expr operator%(const Expr& a, const Expr& b);  // FloorMod
Expr CeilDiv(const Expr& a, const Expr& b);
Expr Min(const Expr& a, const Expr& b);
Expr Max(const Expr& a, const Expr& b);

// Values of the leaves for one evaluation. `load` reads a device-resident tensor.
struct ExprEnv {
  const int64_t* symbols = nullptr;
  const int64_t* coords = nullptr;
  int64_t layer = 0;
  std::function<int64_t(int tensor, int64_t element)> load;
};
// Saturates at the ends of int64; a division by something that is not positive gives 0 (Verify refuses
// both before a program exists).
int64_t Evaluate(const Expr& expr, const ExprEnv& env);

// Calls `visit` for the expression and all its parts, Load indices included, outermost first.
void Visit(const Expr& expr, const std::function<void(const Expr&)>& visit);

// Arithmetic that saturates at the ends of int64.
int64_t SaturatingAdd(int64_t a, int64_t b);
int64_t SaturatingSub(int64_t a, int64_t b);
int64_t SaturatingMul(int64_t a, int64_t b);

// Inclusive bounds of an expression given bounds of its leaves; Load is bounded by its tensor's declared
// range. Sound, not always tight.
struct Interval {
  int64_t low, high;
};
struct BoundEnv {
  std::function<Interval(const Expr& leaf)> leaf;  // kSymbol, kCoord, kLayer, kLoad
};
Interval Bound(const Expr& expr, const BoundEnv& env);

// How leaves are spelled when an expression is printed.
struct ExprNames {
  std::function<std::string(const Expr& leaf)> leaf;
};
std::string ToString(const Expr& expr, const ExprNames& names);  // for people: ceil(tokens / 32)
std::string ToCpp(const Expr& expr, const ExprNames& names);     // for compilers; uses device/base.h

// Expressions deeper than this are refused by Verify: what CompiledExpr's stack holds.
inline constexpr int kMaxExprDepth = 48;

// A straight-line form that evaluates in tens of nanoseconds: what the CPU backend and the simulator use
// for every task. Loads go through a function pointer. Arithmetic is that of the device: i32.
class CompiledExpr {
 public:
  CompiledExpr() = default;
  explicit CompiledExpr(const Expr& expr);
  struct Env {
    const int32_t* symbols;
    const int32_t* coords;
    int32_t layer;
    int32_t (*load)(void* context, int tensor, int64_t element);
    void* context;
  };
  int32_t operator()(const Env& env) const;

 private:
  struct Instruction {
    ExprKind kind;
    int32_t index;
    int32_t value;
  };
  std::vector<Instruction> code_;  // postfix
  int32_t constant_ = 0;           // when code_ is empty
};

}  // namespace eventide
