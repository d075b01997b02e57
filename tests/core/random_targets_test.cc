// Derived targets against enumeration, on random graphs with every form of edge that has a closed
// form: several dims, offsets, quotients, multiples, ranges clipped by symbols, layers, several
// edges and grids per event, extents over symbols, layers and device-resident values.
#include <random>

#include "core/names.h"
#include "core/targets.h"
#include "tests/support/enumerate.h"
#include "tests/support/test.h"
#include "tests/support/toy_ops.h"

namespace eventide {
namespace {

constexpr int kGraphs = 600;

class RandomGraph {
 public:
  explicit RandomGraph(uint64_t seed) : random_(seed), graph_("random") {}

  Graph Make() {
    const int symbols = 1 + Below(2);
    for (int i = 0; i < symbols; ++i)
      symbols_.push_back(graph_.AddSymbol(absl::StrCat("s", i), 0, 3 + Below(10)));
    known_ = graph_.AddEvents("known", {1});
    count_ = graph_.AddPublished("count", {kMaxLayers}, 0, 7, known_, {0});
    const int events = 1 + Below(3);
    for (int i = 0; i < events; ++i) {
      std::vector<Expr> shape;
      const int dims = 1 + Below(3);
      for (int dim = 0; dim < dims; ++dim) shape.push_back(Below(2) ? Expr(1 + Below(6)) : Size());
      events_.push_back(graph_.AddEvents(absl::StrCat("e", i), shape));
      dims_.push_back(dims);
    }
    const int sections = 1 + Below(2);
    for (int s = 0; s < sections; ++s) {
      layers_ = 1 + Below(kMaxLayers);
      graph_.BeginSection(absl::StrCat("section", s), layers_);
      const int grids = 1 + Below(3);
      for (int g = 0; g < grids; ++g) AddGrid(absl::StrCat("g", s, "_", g));
    }
    return std::move(graph_);
  }

 private:
  static constexpr int kMaxLayers = 3;

  int Below(int limit) { return static_cast<int>(random_() % limit); }
  Expr AnySymbol() { return symbols_[Below(static_cast<int>(symbols_.size()))]; }

  Expr Size() {
    switch (Below(4)) {
      case 0:
        return AnySymbol();
      case 1:
        return CeilDiv(AnySymbol(), 1 + Below(4));
      case 2:
        return AnySymbol() * (1 + Below(2)) + Below(3);
      default:
        return Min(AnySymbol(), 1 + Below(5));
    }
  }

  void AddGrid(const std::string& name) {
    std::vector<Expr> extents;
    const int rank = 1 + Below(3);
    bool by_layer = false;
    for (int i = 0; i < rank; ++i) {
      switch (Below(6)) {
        case 0:
          extents.push_back(Expr(1 + Below(5)));
          break;
        case 1:
          extents.push_back(graph_.Load(count_, {0}));
          break;
        case 2:
          extents.push_back(Below(2) ? graph_.Load(count_, {Layer()}) : Layer() + Below(3));
          by_layer = true;
          break;
        default:
          extents.push_back(Size());
      }
    }
    auto grid = graph_.Call<Mix0>(name, {count_}, {}, extents);
    const int edges = 1 + Below(2);
    for (int e = 0; e < edges; ++e) {
      const int event = Below(static_cast<int>(events_.size()));
      std::vector<IndexRange> index;
      for (int dim = 0; dim < dims_[event]; ++dim) index.push_back(Index(rank));
      // Extents that vary by layer need a dim that tells the layer.
      if (by_layer) index[0] = Layer() + Below(2);
      grid.Notify(events_[event], index);
    }
  }

  IndexRange Index(int rank) {
    const Expr at = At(Below(rank));
    const int a = 1 + Below(3), d = 1 + Below(4), b = Below(3);
    switch (Below(10)) {
      case 0:
        return Layer() + b;
      case 1:
        return Expr(Below(3));
      case 2:
        return at + b;
      case 3:
        return at / d + b;
      case 4:
        return (at * a + b) / d;
      case 5:
        return (at / d) * a - b;
      case 6:  // a tile's tokens
        return IndexRange(at * d, Min(at * d + d, AnySymbol()));
      case 7:
        return IndexRange(at / d, at / d + 1 + Below(2));
      case 8:
        return IndexRange(Max(at - b, 0), at + 1 + b);
      default:  // falling with the coordinate
        return Below(2) ? IndexRange(Expr(5) - at) : IndexRange(Expr(0), AnySymbol());
    }
  }

  std::mt19937_64 random_;
  Graph graph_;
  std::vector<Expr> symbols_;
  std::vector<EventId> events_;
  std::vector<int> dims_;
  EventId known_;
  TensorId count_;
  int layers_ = 1;
};

// Calls visit for every combination of symbol values (there are at most a few hundred), thinned
// out.
template <class Visit>
void ForSymbolValues(const Graph& graph, std::mt19937_64& random, const Visit& visit) {
  std::vector<Expr> shape;
  for (const SymbolDecl& symbol : graph.symbols()) shape.push_back(Expr(symbol.max + 1));
  int visited = 0;
  ForEachIndex(shape, {}, [&](const ElementIndex& values) {
    const bool corner = std::all_of(values.begin(), values.end(), [](int64_t v) { return v <= 1; });
    if (!corner && visited > 4 && random() % 8 != 0) return;
    ++visited;
    visit(values);
  });
}

TEST_CASE("derived targets equal enumerated arrivals on random graphs") {
  std::mt19937_64 random(7);
  int64_t compared = 0, nonzero = 0, refused = 0;
  for (uint64_t seed = 0; seed < kGraphs; ++seed) {
    const Graph graph = RandomGraph(seed).Make();
    REQUIRE(graph.mistakes().empty());
    for (size_t e = 1; e < graph.events().size(); ++e) {
      const absl::StatusOr<Expr> target = DeriveTarget(graph, static_cast<int>(e));
      if (!target.ok()) {
        ++refused;
        continue;
      }
      const CompiledExpr compiled(*target);
      ForSymbolValues(graph, random, [&](const SymbolValues& values) {
        const uint64_t draw = random();
        const PublishedValues published = [draw](int, int64_t element) -> int64_t {
          return static_cast<int64_t>(draw >> (element * 8) & 7);
        };
        const std::vector<ElementCounts> counts = EnumerateArrivals(graph, values, published);
        ExprEnv env;
        env.symbols = values.data();
        env.load = published;
        ForEachIndex(graph.events()[e].shape, values, [&](const ElementIndex& at) {
          env.coords = at.data();
          const int64_t derived = Evaluate(*target, env), counted = CountAt(counts[e], at);
          ++compared;
          nonzero += counted > 0;
          if (derived != counted) {
            INFO("seed " << seed << " event " << graph.events()[e].name << " target "
                         << ExprText(graph, *target, 'e') << " with "
                         << SymbolText(graph.symbols(), values));
            REQUIRE(derived == counted);
          }
        });
      });
    }
  }
  INFO("compared " << compared << ", above zero " << nonzero << ", refused " << refused);
  CHECK(refused == 0);
  CHECK(compared > 100000);
  CHECK(nonzero > 20000);
}

}  // namespace
}  // namespace eventide
