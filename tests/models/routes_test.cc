#include "models/routes.h"

#include <algorithm>
#include <map>
#include <set>

#include "models/presets.h"
#include "tests/support/test.h"

namespace eventide {
namespace {

ModelConfig Config() {
  ModelConfig config = *PresetConfig("test-moe");
  config.layers = 3;
  return config;
}

std::map<int, int> CountExperts(const Routes& routes, int layer) {
  std::map<int, int> count;
  for (int line = 0; line < routes.lines; ++line) {
    for (int k = 0; k < routes.top_k; ++k) ++count[routes.Line(layer, line)[k]];
  }
  return count;
}

TEST_CASE("drawn routes have distinct experts and the shares they were asked for") {
  for (const char* kind : {"uniform", "zipf:1", "zipf:1.5", "one-hot"}) {
    INFO(kind);
    const auto routes = MakeRoutes(kind, Config(), 5);
    REQUIRE(routes.ok());
    REQUIRE(routes->lines == kDrawnLines);
    for (int layer = 0; layer < 3; ++layer) {
      for (int line = 0; line < routes->lines; line += 7) {
        const int32_t* e = routes->Line(layer, line);
        REQUIRE(std::set<int>(e, e + 4).size() == 4);
        REQUIRE(*std::min_element(e, e + 4) >= 0);
        REQUIRE(*std::max_element(e, e + 4) < 16);
      }
    }
  }
  // Four of sixteen: a quarter of the lines for each expert, within five standard deviations.
  for (const auto& [expert, count] : CountExperts(*MakeRoutes("uniform", Config(), 5), 1)) {
    CHECK(std::abs(count - kDrawnLines / 4) < 5 * std::sqrt(kDrawnLines * 0.1875));
  }
  const auto one_hot = CountExperts(*MakeRoutes("one-hot", Config(), 5), 2);
  CHECK(one_hot.size() == 4);
  CHECK(one_hot.begin()->second == kDrawnLines);
}

TEST_CASE("the first expert drawn is a Zipf variate, whose best expert differs by layer") {
  const auto routes = MakeRoutes("zipf:1", Config(), 9);
  REQUIRE(routes.ok());
  double harmonic = 0;
  for (int r = 1; r <= 16; ++r) harmonic += 1.0 / r;
  std::set<int> best;
  for (int layer = 0; layer < 3; ++layer) {
    std::map<int, int> first;
    for (int line = 0; line < routes->lines; ++line) ++first[routes->Line(layer, line)[0]];
    std::vector<std::pair<int, int>> counts;
    for (const auto& [expert, count] : first) counts.push_back({count, expert});
    std::sort(counts.rbegin(), counts.rend());
    best.insert(counts[0].second);
    for (int r = 1; r <= 3; ++r) {
      const double p = 1.0 / r / harmonic;
      CHECK(std::abs(counts[static_cast<size_t>(r - 1)].first - p * kDrawnLines) <
            5 * std::sqrt(kDrawnLines * p * (1 - p)));
    }
  }
  CHECK(best.size() > 1);
}

TEST_CASE("recorded routes come back as they were written, and again where they are too few") {
  Routes written{3, 2, 4, {}};
  for (int i = 0; i < 24; ++i) written.experts.push_back(i * 5 % 16);
  const auto read = ParseRoutes(RoutesText(written), Config());
  INFO(read.status());
  REQUIRE(read.ok());
  for (int layer = 0; layer < 3; ++layer) {
    for (int line = 0; line < 9; ++line) {
      CHECK(std::equal(read->Line(layer, line), read->Line(layer, line) + 4,
                       written.Line(layer, line % 2)));
    }
  }
}

TEST_CASE("routes that cannot be are refused by name") {
  const auto message = [](const absl::StatusOr<Routes>& routes) {
    REQUIRE_FALSE(routes.ok());
    return std::string(routes.status().message());
  };
  CHECK(message(MakeRoutes("zipf:x", Config(), 0)).find("'x'") != std::string::npos);
  CHECK(message(MakeRoutes("square", Config(), 0)).find("one-hot") != std::string::npos);
  CHECK(message(MakeRoutes("recorded:/nowhere", Config(), 0)).find("/nowhere") !=
        std::string::npos);
  CHECK(message(MakeRoutes("uniform", *PresetConfig("test-llama"), 0)).find("without experts") !=
        std::string::npos);
  CHECK(message(ParseRoutes("{\"layer\": 0, \"experts\": [1, 2, 3, 4]}\n", Config()))
            .find("layer 1") != std::string::npos);
  CHECK(message(ParseRoutes("{\"layer\": 0, \"experts\": [1, 2, 3]}", Config())).find("list of 4") !=
        std::string::npos);
  CHECK(message(ParseRoutes("\n{\"layer\": 3, \"experts\": [1, 2, 3, 4]}", Config()))
            .find("line 2") != std::string::npos);
  CHECK(message(ParseRoutes("{\"layer\": 0, \"experts\": [1, 2, 3, 16]}", Config()))
            .find("0 to 15") != std::string::npos);
}

TEST_CASE("statistics count experts by their tokens") {
  // Two steps of two tokens in one layer of six experts.
  const Routes routes{1, 4, 2, {0, 1, 0, 2, 3, 4, 4, 3}};
  const RouteStatistics s = StatisticsOf(routes, 6, 2, 2);
  CHECK(s.active == 2.5);
  CHECK(s.least_active == 2);
  CHECK(s.most_active == 3);
  CHECK(s.busiest == 2.0);
  CHECK(s.most_tokens == 2);
  CHECK(s.histogram[0] == 3.5);
  CHECK(s.histogram[1] == 1.0);
  CHECK(s.histogram[2] == 1.5);
  CHECK(HistogramStart(3) == 3);
  CHECK(HistogramStart(4) == 5);
  CHECK(HistogramStart(11) == 513);
}

}  // namespace
}  // namespace eventide
