// Step times over a size that grows by one, rows of a step or tokens of a chunk: whether the curve
// has cliffs, and which of its steps come from tiles.
#pragma once

#include <optional>
#include <span>
#include <vector>

namespace eventide {

struct CurvePoint {
  int size = 0;
  double ms = 0;
};

// Tokens of a step go through tiles of up to 64, in groups of 8: a step behind a multiple of these
// is a tile's.
inline constexpr int kTileSizes[] = {64, 32, 16, 8};
// The largest that divides `size`; 0: none.
int TileOf(int size);

// From one size to the next: `size` is the one before it.
struct CurveStep {
  int size = 0;
  int tile = 0;  // TileOf(size)
  double ms_before = 0, ms_after = 0;
  double rise() const { return ms_before > 0 ? ms_after / ms_before - 1 : 0; }
};

// Rises behind multiples of one tile size (and of no larger one), or, tile 0, behind all other
// sizes.
struct TileRises {
  int tile = 0;
  int steps = 0;
  double mean = 0;
  CurveStep most;
};

struct CurveReport {
  double limit = 0;
  // Of each point: its time over that of the line through its two neighbours, less 1. None for the
  // ends.
  std::vector<std::optional<double>> deviation;
  std::optional<CurvePoint> worst;  // the point with the largest deviation, either way
  // Points beyond the limit. What puts a point there is the larger of the steps before and behind
  // it; where that is a tile's, it is listed there, else the point is a cliff.
  std::vector<int> beyond;
  std::vector<CurveStep> tile_steps;
  std::vector<int> cliffs;
  std::vector<TileRises> rises;  // of sizes that follow each other directly
};

// Points in order of size, each size once.
CurveReport ReportCurve(std::span<const CurvePoint> points, double limit);

}  // namespace eventide
