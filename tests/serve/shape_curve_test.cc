// Curves whose cliffs and steps are known.
#include "serve/shape_curve.h"

#include <functional>

#include "tests/support/test.h"

namespace eventide {
namespace {

std::vector<CurvePoint> Curve(int low, int high, const std::function<double(int)>& ms) {
  std::vector<CurvePoint> points;
  for (int size = low; size <= high; ++size) points.push_back({size, ms(size)});
  return points;
}

TEST_CASE("a straight line has no deviation, whatever its sizes") {
  for (const std::vector<CurvePoint>& points :
       {Curve(1, 100, [](int n) { return 4 + 0.1 * n; }),
        std::vector<CurvePoint>{{1, 1}, {2, 2}, {7, 7}, {64, 64}, {65, 65}}}) {
    const CurveReport report = ReportCurve(points, 0.05);
    REQUIRE(report.deviation.size() == points.size());
    CHECK_FALSE(report.deviation.front());
    CHECK_FALSE(report.deviation.back());
    for (size_t i = 1; i + 1 < points.size(); ++i) {
      CHECK(*report.deviation[i] == Approx(0).margin(1e-12));
    }
    CHECK(report.beyond.empty());
    CHECK(report.tile_steps.empty());
    CHECK(report.cliffs.empty());
  }
}

TEST_CASE(
    "a point off the line is a cliff, and makes none of its neighbours one that is within the "
    "limit") {
  // Neighbours of a point that is high by d are low by d / 2.
  const CurveReport report =
      ReportCurve(Curve(1, 30, [](int n) { return n == 21 ? 1.08 : 1; }), 0.05);
  CHECK(report.beyond == std::vector<int>{21});
  CHECK(report.cliffs == report.beyond);
  CHECK(report.tile_steps.empty());
  REQUIRE(report.worst);
  CHECK(report.worst->size == 21);
  CHECK(*report.deviation[20] == Approx(0.08));
  CHECK(*report.deviation[19] == Approx(1 / 1.04 - 1));
}

TEST_CASE("steps of tiles are named, with the largest tile that has one there") {
  const auto stairs = [](int n) { return 1.0 + 0.3 * ((n - 1) / 64) + 0.12 * ((n - 1) / 16); };
  const CurveReport report = ReportCurve(Curve(1, 80, stairs), 0.05);
  // Behind 16 and 32 a step of 12 % and of 11 %; 48: 10 %; 64: 31 %.
  CHECK(report.beyond == std::vector<int>{16, 17, 32, 33, 64, 65});
  CHECK(report.cliffs.empty());
  REQUIRE(report.tile_steps.size() == 3);
  CHECK(report.tile_steps[0].tile == 16);
  CHECK(report.tile_steps[1].tile == 32);
  CHECK(report.tile_steps[2].size == 64);
  CHECK(report.tile_steps[2].tile == 64);
  CHECK(report.tile_steps[2].rise() == Approx(0.42 / 1.36));
  REQUIRE(report.rises.size() == 5);
  CHECK(report.rises[0].tile == 64);
  CHECK(report.rises[0].steps == 1);
  CHECK(report.rises[2].tile == 16);
  CHECK(report.rises[2].steps == 2);  // 16 and 48
  CHECK(report.rises[2].most.size == 16);
  CHECK(report.rises[3].mean == Approx(0).margin(1e-12));
  CHECK(report.rises[4].tile == 0);
  CHECK(report.rises[4].steps == 79 - 9);
}

TEST_CASE("a step elsewhere is a cliff on both of its sides, a drop too") {
  const CurveReport up = ReportCurve(Curve(1, 40, [](int n) { return n > 20 ? 1.5 : 1; }), 0.05);
  CHECK(up.cliffs == std::vector<int>{20, 21});
  const CurveReport down = ReportCurve(Curve(1, 40, [](int n) { return n > 20 ? 1 : 1.5; }), 0.05);
  CHECK(down.cliffs == std::vector<int>{20, 21});
  const CurveReport tile = ReportCurve(Curve(1, 40, [](int n) { return n > 24 ? 1 : 1.5; }), 0.05);
  CHECK(tile.cliffs.empty());
  REQUIRE(tile.tile_steps.size() == 1);
  CHECK(tile.tile_steps[0].rise() == Approx(-1.0 / 3));
}

TEST_CASE("few points have no line") {
  CHECK(ReportCurve({}, 0.05).deviation.empty());
  const std::vector<CurvePoint> two = {{1, 1}, {2, 5}};
  const CurveReport report = ReportCurve(two, 0.05);
  CHECK(report.beyond.empty());
  CHECK_FALSE(report.worst);
  CHECK(report.rises[4].steps == 1);
}

}  // namespace
}  // namespace eventide
