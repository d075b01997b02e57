#include "models/routes.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <numeric>
#include <random>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "core/status.h"
#include "formats/json.h"
#include "ops/route.h"

namespace eventide {

static_assert(kDrawnLines == 16 * Route::kDrawsOfStep && kDrawnStride == Route::kDrawsOfStep);

namespace {

// `count` distinct experts, each in proportion to its weight among those left.
void DrawDistinct(const std::vector<double>& weights, int count, std::mt19937_64& random,
                  int32_t* out) {
  std::vector<double> left = weights;
  double total = std::accumulate(left.begin(), left.end(), 0.0);
  for (int k = 0; k < count; ++k) {
    double at = std::uniform_real_distribution<double>(0, total)(random);
    size_t chosen = left.size();
    for (size_t e = 0; e < left.size(); ++e) {
      if (left[e] <= 0) continue;
      chosen = e;  // the last one that is left, where rounding goes past the end
      if (at < left[e]) break;
      at -= left[e];
    }
    out[k] = static_cast<int32_t>(chosen);
    total -= left[chosen];
    left[chosen] = 0;
  }
}

Routes Empty(const ModelConfig& config, int lines) {
  Routes routes{config.layers, lines, config.experts_per_token, {}};
  routes.experts.assign(static_cast<size_t>(routes.layers) * lines * routes.top_k, -1);
  return routes;
}

Routes Draw(const ModelConfig& config, double exponent, bool one_hot, uint64_t seed) {
  Routes routes = Empty(config, kDrawnLines);
  for (int layer = 0; layer < config.layers; ++layer) {
    std::mt19937_64 random(seed * 1000003 + static_cast<uint64_t>(layer));
    std::vector<int> rank(static_cast<size_t>(config.num_experts));
    std::iota(rank.begin(), rank.end(), 1);
    std::shuffle(rank.begin(), rank.end(), random);
    std::vector<double> weights;
    for (int r : rank) weights.push_back(std::pow(r, -exponent));
    for (int line = 0; line < routes.lines; ++line) {
      int32_t* out =
          &routes.experts[(static_cast<size_t>(layer) * routes.lines + line) * routes.top_k];
      if (one_hot && line > 0) {
        std::copy_n(routes.Line(layer, 0), routes.top_k, out);
      } else {
        DrawDistinct(weights, routes.top_k, random, out);
      }
    }
  }
  return routes;
}

absl::StatusOr<std::string> ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot read the routes in ", path));
  return std::string(std::istreambuf_iterator<char>(file), {});
}

}  // namespace

absl::StatusOr<Routes> MakeRoutes(absl::string_view kind, const ModelConfig& config,
                                  uint64_t seed) {
  if (!config.IsMoe()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a model of family ", config.family, " without experts has no routes"));
  }
  if (kind == "router") return Empty(config, kDrawnLines);
  if (kind == "uniform") return Draw(config, 0.0, false, seed);
  if (kind == "one-hot") return Draw(config, 0.0, true, seed);
  if (absl::ConsumePrefix(&kind, "zipf:")) {
    double exponent = 0;
    if (!absl::SimpleAtod(kind, &exponent) || !(exponent >= 0 && exponent <= 10)) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", kind, "' is no exponent: zipf:S with S from 0 to 10"));
    }
    return Draw(config, exponent, false, seed);
  }
  if (absl::ConsumePrefix(&kind, "recorded:")) {
    ASSIGN_OR_RETURN(const std::string text, ReadText(std::string(kind)));
    return ParseRoutes(text, config);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "there are no routes '", kind,
      "'; there are router, uniform, zipf:S, one-hot and recorded:FILE"));
}

absl::StatusOr<Routes> ParseRoutes(absl::string_view text, const ModelConfig& config) {
  std::vector<std::vector<int32_t>> layers(static_cast<size_t>(config.layers));
  int number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    const auto bad = [&](const auto&... why) {
      return absl::InvalidArgumentError(absl::StrCat("line ", number, " of the routes: ", why...));
    };
    const absl::StatusOr<nlohmann::json> json = ParseJsonObject(line, "routes");
    if (!json.ok()) return bad(json.status().message());
    const absl::StatusOr<int64_t> layer = JsonInteger(*json, "layer", 0, config.layers - 1);
    if (!layer.ok()) return bad(layer.status().message());
    const nlohmann::json* experts = JsonFind(*json, "experts");
    if (experts == nullptr || !experts->is_array() ||
        experts->size() != static_cast<size_t>(config.experts_per_token)) {
      return bad("\"experts\" must be a list of ", config.experts_per_token);
    }
    for (const nlohmann::json& expert : *experts) {
      if (!expert.is_number_integer() || expert.get<int64_t>() < 0 ||
          expert.get<int64_t>() >= config.num_experts) {
        return bad("an expert is not from 0 to ", config.num_experts - 1);
      }
      layers[static_cast<size_t>(*layer)].push_back(expert.get<int32_t>());
    }
  }
  for (size_t l = 0; l < layers.size(); ++l) {
    if (layers[l].empty()) {
      return absl::InvalidArgumentError(absl::StrCat("there are no routes for layer ", l));
    }
  }
  Routes routes = Empty(config, kDrawnLines);
  const size_t each = static_cast<size_t>(kDrawnLines) * routes.top_k;
  for (size_t i = 0; i < routes.experts.size(); ++i) {
    const auto& layer = layers[i / each];
    routes.experts[i] = layer[i % each % layer.size()];
  }
  return routes;
}

std::string RoutesText(const Routes& routes) {
  std::string text;
  for (int layer = 0; layer < routes.layers; ++layer) {
    for (int line = 0; line < routes.lines; ++line) {
      const int32_t* experts = routes.Line(layer, line);
      absl::StrAppend(&text, "{\"layer\": ", layer, ", \"experts\": [");
      for (int k = 0; k < routes.top_k; ++k) absl::StrAppend(&text, k ? ", " : "", experts[k]);
      absl::StrAppend(&text, "]}\n");
    }
  }
  return text;
}

int HistogramStart(int bucket) {
  return bucket < 3 ? bucket : (1 << (bucket - 2)) + 1;
}

RouteStatistics StatisticsOf(const Routes& routes, int experts, int batch, int stride) {
  RouteStatistics result;
  result.least_active = experts;
  result.histogram.assign(kHistogramBuckets, 0.0);
  int steps = 0;
  std::vector<int> tokens(static_cast<size_t>(experts));
  for (int first = 0; first < routes.lines; first += stride) {
    for (int layer = 0; layer < routes.layers; ++layer, ++steps) {
      std::fill(tokens.begin(), tokens.end(), 0);
      for (int i = 0; i < batch; ++i) {
        const int32_t* line = routes.Line(layer, (first + i) % routes.lines);
        for (int k = 0; k < routes.top_k; ++k) {
          if (line[k] >= 0) ++tokens[static_cast<size_t>(line[k])];
        }
      }
      const int active = static_cast<int>(tokens.size()) -
                         static_cast<int>(std::count(tokens.begin(), tokens.end(), 0));
      const int busiest = *std::max_element(tokens.begin(), tokens.end());
      result.active += active;
      result.busiest += busiest;
      result.least_active = std::min(result.least_active, active);
      result.most_active = std::max(result.most_active, active);
      result.most_tokens = std::max(result.most_tokens, busiest);
      for (int count : tokens) {
        int bucket = kHistogramBuckets - 1;
        while (count < HistogramStart(bucket)) --bucket;
        result.histogram[static_cast<size_t>(bucket)] += 1;
      }
    }
  }
  result.active /= steps;
  result.busiest /= steps;
  for (double& count : result.histogram) count /= steps;
  return result;
}

}  // namespace eventide
