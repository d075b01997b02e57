#include "serve/exit_stats.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace eventide {

uint64_t ExitStats::left_early() const { return std::accumulate(left.begin(), left.end(), uint64_t{0}); }

double ExitStats::layers_per_token() const {
  if (tokens == 0) return 0;
  double saved = 0;
  for (size_t layer = 0; layer < left.size(); ++layer) {
    saved += static_cast<double>(left[layer]) * static_cast<double>(left.size() - layer - 1);
  }
  return static_cast<double>(left.size()) - saved / static_cast<double>(tokens);
}

nlohmann::ordered_json ToJson(const ExitStats& stats) {
  nlohmann::ordered_json behind = nlohmann::ordered_json::object();
  for (size_t layer = 0; layer < stats.left.size(); ++layer) {
    if (stats.left[layer] > 0) behind[absl::StrCat(layer + 1)] = stats.left[layer];
  }
  return {{"tokens", stats.tokens},
          {"layers", stats.left.size()},
          {"layers_per_token", stats.layers_per_token()},
          {"left_early", stats.left_early()},
          {"left_behind_layer", behind}};
}

std::string Summary(const ExitStats& stats) {
  std::string text = absl::StrFormat("%d tokens passed %.2f of %d layers on average, %d left early", stats.tokens,
                                     stats.layers_per_token(), stats.left.size(), stats.left_early());
  const char* between = ": ";
  for (size_t layer = 0; layer < stats.left.size(); ++layer) {
    if (stats.left[layer] == 0) continue;
    absl::StrAppendFormat(&text, "%s%d behind layer %d", between, stats.left[layer], layer + 1);
    between = ", ";
  }
  return text;
}

}  // namespace eventide
