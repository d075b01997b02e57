#include "core/samples.h"

#include <algorithm>
#include <random>
#include <set>

#include "absl/strings/str_cat.h"

namespace eventide {
namespace {

constexpr size_t kMaxDivisors = 6;
constexpr size_t kMaxSearch = 4096;  // choices tried for a smaller example

// Constants that symbols or coordinates are divided by: the tile sizes of the graph.
std::vector<int64_t> Divisors(const Graph& graph) {
  std::set<int64_t> found;
  VisitExpressions(graph, [&](const Expr& expr) {
    Visit(expr, [&](const Expr& part) {
      if (part.kind() != ExprKind::kFloorDiv && part.kind() != ExprKind::kMod) return;
      const auto divisor = part.b().AsConstant();
      if (divisor && *divisor > 1) found.insert(*divisor);
    });
  });
  std::vector<int64_t> divisors(found.begin(), found.end());
  if (divisors.size() > kMaxDivisors) divisors.resize(kMaxDivisors);
  return divisors;
}

std::vector<int64_t> WorthTrying(const SymbolDecl& symbol, const std::vector<int64_t>& divisors,
                                 std::mt19937_64& random) {
  std::set<int64_t> values;
  const auto add = [&](int64_t value) {
    if (value >= symbol.min && value <= symbol.max) values.insert(value);
  };
  for (int64_t delta : {0, 1, 2}) add(symbol.min + delta);
  add(symbol.max);
  add(symbol.max - 1);
  for (int64_t divisor : divisors) {
    for (int64_t delta : {-1, 0, 1}) add(divisor + delta);
    add(2 * divisor + 1);
  }
  std::uniform_int_distribution<int64_t> any(symbol.min, symbol.max);
  std::uniform_int_distribution<int64_t> low(symbol.min, std::min(symbol.max, symbol.min + 100));
  add(any(random));
  add(low(random));
  return {values.begin(), values.end()};
}

using Choices = std::vector<std::vector<int64_t>>;

// Every combination, the first symbol slowest.
std::vector<SymbolValues> Product(const Choices& choices) {
  std::vector<SymbolValues> all = {{}};
  for (const std::vector<int64_t>& values : choices) {
    std::vector<SymbolValues> longer;
    for (const SymbolValues& prefix : all) {
      for (int64_t value : values) {
        longer.push_back(prefix);
        longer.back().push_back(value);
      }
    }
    all = std::move(longer);
  }
  return all;
}

// Each symbol through all its values while the others stay low or high, then random combinations.
std::vector<SymbolValues> Sweep(const Graph& graph, const Choices& choices, size_t limit,
                                std::mt19937_64& random) {
  std::set<SymbolValues> some;
  const auto add = [&](const SymbolValues& values) {
    if (IsAdmissible(graph, values)) some.insert(values);
  };
  SymbolValues low, high;
  for (const std::vector<int64_t>& values : choices) {
    low.push_back(values.front());
    high.push_back(values.back());
  }
  add(low);
  add(high);
  for (size_t i = 0; i < choices.size(); ++i) {
    for (int64_t value : choices[i]) {
      for (SymbolValues values : {low, high}) {
        values[i] = value;
        add(values);
      }
    }
  }
  for (size_t tries = 0; tries < 8 * limit && some.size() < limit; ++tries) {
    SymbolValues values;
    for (const std::vector<int64_t>& choice : choices)
      values.push_back(choice[random() % choice.size()]);
    add(values);
  }
  std::vector<SymbolValues> result(some.begin(), some.end());
  // Too many sweeps: keep the ends and an even selection between them.
  if (result.size() > limit) {
    std::vector<SymbolValues> kept;
    for (size_t i = 0; i < limit; ++i)
      kept.push_back(result[i * (result.size() - 1) / std::max<size_t>(limit - 1, 1)]);
    result = std::move(kept);
  }
  return result;
}

}  // namespace

bool IsAdmissible(const Graph& graph, const SymbolValues& values) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] < graph.symbols()[i].min || values[i] > graph.symbols()[i].max) return false;
  }
  ExprEnv env;
  env.symbols = values.data();
  for (const Expr& assumption : graph.assumptions()) {
    if (Evaluate(assumption, env) < 0) return false;
  }
  return true;
}

std::vector<SymbolValues> SymbolSamples(const Graph& graph, size_t limit, uint64_t seed) {
  std::mt19937_64 random(seed);
  const std::vector<int64_t> divisors = Divisors(graph);
  Choices choices;
  size_t combinations = 1;
  for (const SymbolDecl& symbol : graph.symbols()) {
    choices.push_back(WorthTrying(symbol, divisors, random));
    combinations = std::min<size_t>(combinations * choices.back().size(), 1 << 20);
  }
  if (combinations > limit) return Sweep(graph, choices, limit, random);
  std::vector<SymbolValues> result;
  for (SymbolValues& values : Product(choices)) {
    if (IsAdmissible(graph, values)) result.push_back(std::move(values));
  }
  return result;
}

SymbolValues SmallestBad(const Graph& graph, const SymbolValues& bad,
                         const std::function<bool(const SymbolValues&)>& is_bad) {
  std::mt19937_64 random(1);
  const std::vector<int64_t> divisors = Divisors(graph);
  size_t combinations = 1;
  // Fewer small values of each symbol until all combinations can be tried.
  for (int64_t small : {64, 16, 6, 2, 0}) {
    Choices choices;
    combinations = 1;
    for (size_t i = 0; i < bad.size(); ++i) {
      const SymbolDecl& symbol = graph.symbols()[i];
      std::set<int64_t> values = {symbol.min, bad[i]};
      for (int64_t value = symbol.min; value < std::min(symbol.min + small, symbol.max); ++value)
        values.insert(value);
      if (small > 0 && small < 64) {
        for (int64_t value : WorthTrying(symbol, divisors, random)) values.insert(value);
      }
      choices.emplace_back(values.begin(), values.end());
      combinations = std::min<size_t>(combinations * values.size(), 1 << 20);
    }
    if (combinations > kMaxSearch) continue;
    for (const SymbolValues& values : Product(choices)) {
      if (values >= bad) break;
      if (IsAdmissible(graph, values) && is_bad(values)) return values;
    }
    break;
  }
  return bad;
}

std::string SymbolText(const std::vector<SymbolDecl>& symbols, const SymbolValues& values) {
  std::string text;
  for (size_t i = 0; i < values.size(); ++i)
    absl::StrAppend(&text, i == 0 ? "" : ", ", symbols[i].name, " = ", values[i]);
  return text;
}

void VisitExpressions(const Graph& graph, const std::function<void(const Expr&)>& visit) {
  const auto visit_index = [&](const std::vector<IndexRange>& index) {
    for (const IndexRange& range : index) {
      visit(range.low);
      if (!range.single) visit(range.high);
    }
  };
  for (const TensorDecl& tensor : graph.tensors()) {
    for (const Expr& dim : tensor.shape) visit(dim);
    for (const Expr& index : tensor.published_index) visit(index);
  }
  for (const EventDecl& event : graph.events()) {
    for (const Expr& dim : event.shape) visit(dim);
  }
  for (const GridDecl& grid : graph.grids()) {
    for (const Expr& extent : grid.extents) visit(extent);
    for (const Edge& edge : grid.waits) visit_index(edge.index);
    for (const Edge& edge : grid.notifies) visit_index(edge.index);
    for (const Operand& operand : grid.operands) {
      if (operand.indexed) visit(operand.layer);
      visit_index(operand.region);
    }
  }
  for (const Expr& dim : graph.dims()) visit(dim);
}

}  // namespace eventide
