// Routes for measuring imbalance: which experts the tokens of a step go to, drawn or recorded, in place of
// what the router of a model with random weights would say; and what a set of routes asks of a machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "models/config.h"

namespace eventide {

// Lines of made routes: 16 steps of up to 1,024 tokens; then they come again.
inline constexpr int kDrawnStride = 1024, kDrawnLines = 16 * kDrawnStride;

// Experts of tokens: [layer][line][rank]. The device takes line (step * 1024 + token) mod lines.
struct Routes {
  int layers = 0, lines = 0, top_k = 0;
  std::vector<int32_t> experts;  // -1: as the router says; of a step that has run: the token had left (early exit)

  const int32_t* Line(int layer, int line) const {
    return &experts[(static_cast<size_t>(layer) * lines + line) * top_k];
  }
};

// `kind`: "router" (the model's own choice), "uniform", "zipf:S" (the r-th likeliest expert of a layer has a
// probability in proportion to r^-S; which one it is differs by layer), "one-hot" (all tokens of a layer go to
// the same experts), or "recorded:FILE". Experts of one token are distinct, but for recorded ones.
absl::StatusOr<Routes> MakeRoutes(absl::string_view kind, const ModelConfig& config, uint64_t seed);

// Text of recorded routes: a line for each token of each layer, {"layer": 0, "experts": [3, 1]}. Where a
// layer has fewer lines than are needed they come again.
absl::StatusOr<Routes> ParseRoutes(absl::string_view text, const ModelConfig& config);
std::string RoutesText(const Routes& routes);

// Of steps of `batch` tokens, over all steps and layers.
struct RouteStatistics {
  double active = 0;        // experts with tokens, in the mean
  int least_active = 0, most_active = 0;
  double busiest = 0;       // tokens of the busiest expert, in the mean
  int most_tokens = 0;
  // Experts of a layer, in the mean, with 0, 1, 2, 3-4, 5-8, 9-16, 17-32, 33-64, ... tokens.
  std::vector<double> histogram;
};
inline constexpr int kHistogramBuckets = 12;
// The first number of tokens of a bucket.
int HistogramStart(int bucket);
// Steps begin at lines 0, `stride`, 2 * stride, ...
RouteStatistics StatisticsOf(const Routes& routes, int experts, int batch, int stride);

}  // namespace eventide
