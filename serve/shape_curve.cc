#include "serve/shape_curve.h"

#include <cmath>

namespace eventide {
namespace {

// By which the point's time differs from the line through its neighbours, as a share of that.
double DeviationOf(const CurvePoint& before, const CurvePoint& at, const CurvePoint& after) {
  const double share =
      static_cast<double>(at.size - before.size) / static_cast<double>(after.size - before.size);
  const double line = before.ms + share * (after.ms - before.ms);
  return line > 0 ? at.ms / line - 1 : 0;
}

CurveStep StepBetween(const CurvePoint& before, const CurvePoint& after) {
  return {before.size, TileOf(before.size), before.ms, after.ms};
}

void AddRise(const CurveStep& step, std::vector<TileRises>* rises) {
  for (TileRises& of : *rises) {
    if (of.tile != step.tile) continue;
    if (of.steps == 0 || step.rise() > of.most.rise()) of.most = step;
    ++of.steps;
    of.mean += (step.rise() - of.mean) / of.steps;
  }
}

}  // namespace

int TileOf(int size) {
  for (const int tile : kTileSizes) {
    if (size % tile == 0) return tile;
  }
  return 0;
}

CurveReport ReportCurve(std::span<const CurvePoint> points, double limit) {
  CurveReport report;
  report.limit = limit;
  report.deviation.resize(points.size());
  for (const int tile : kTileSizes) report.rises.push_back({.tile = tile});
  report.rises.push_back({});
  double worst = 0;
  for (size_t i = 0; i + 1 < points.size(); ++i) {
    if (points[i + 1].size == points[i].size + 1) {
      AddRise(StepBetween(points[i], points[i + 1]), &report.rises);
    }
    if (i == 0) continue;
    const double deviation = DeviationOf(points[i - 1], points[i], points[i + 1]);
    report.deviation[i] = deviation;
    if (!report.worst || std::abs(deviation) > worst) {
      worst = std::abs(deviation);
      report.worst = points[i];
    }
    if (std::abs(deviation) <= limit) continue;
    report.beyond.push_back(points[i].size);
    const CurveStep before = StepBetween(points[i - 1], points[i]),
                    behind = StepBetween(points[i], points[i + 1]);
    const bool later =
        std::abs(behind.ms_after - behind.ms_before) > std::abs(before.ms_after - before.ms_before);
    const CurveStep& cause = later ? behind : before;
    if (cause.tile == 0) {
      report.cliffs.push_back(points[i].size);
    } else if (report.tile_steps.empty() || report.tile_steps.back().size != cause.size) {
      report.tile_steps.push_back(cause);
    }
  }
  return report;
}

}  // namespace eventide
