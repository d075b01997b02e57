#include "serve/stats.h"

#include <algorithm>
#include <cmath>

#include "serve/hash.h"

namespace eventide {

void ShapeCounter::Add(std::span<const RowShape> rows) {
  std::vector<uint64_t> words;
  uint64_t tokens = 0;
  for (const RowShape& row : rows) {
    words.push_back(row.query_length);
    tokens += row.query_length;
  }
  for (const RowShape& row : rows) words.push_back(row.context_length);
  const auto middle = words.begin() + static_cast<std::ptrdiff_t>(rows.size());
  std::sort(words.begin(), middle);
  std::sort(middle, words.end());
  uint64_t low = CombineHash(rows.size(), tokens);
  uint64_t high = CombineHash(~tokens, rows.size());
  for (uint64_t word : words) {
    low = CombineHash(low, word);
    high = CombineHash(high, ~word);
  }
  seen_.emplace(low, high);
}

double Percentile(std::vector<double> samples, double percent) {
  if (samples.empty()) return 0;
  const double rank = std::ceil(percent / 100 * static_cast<double>(samples.size()));
  const size_t last = samples.size() - 1;
  const size_t index = rank < 1 ? 0 : std::min(static_cast<size_t>(rank) - 1, last);
  auto at = samples.begin() + static_cast<std::ptrdiff_t>(index);
  std::nth_element(samples.begin(), at, samples.end());
  return *at;
}

}  // namespace eventide
