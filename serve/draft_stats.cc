#include "serve/draft_stats.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"

namespace eventide {
namespace {

double Share(uint64_t part, uint64_t all) {
  return all == 0 ? 0 : static_cast<double>(part) / static_cast<double>(all);
}

}  // namespace

void DraftStats::Add(const RowResult& row) {
  if (row.query_length == 0) return;
  ++rows;
  tokens += row.tokens.size();
  drafted += row.query_length - 1;
  accepted += row.accepted;
  for (uint32_t i = 0; i + 1 < row.query_length && i < kMaxDraftTokens; ++i) {
    ++drafted_at[i];
    accepted_at[i] += i < row.accepted;
  }
}

double DraftStats::acceptance() const {
  return Share(accepted, drafted);
}

double DraftStats::tokens_per_step() const {
  return Share(tokens, rows);
}

nlohmann::ordered_json ToJson(const DraftStats& stats) {
  nlohmann::ordered_json by_position = nlohmann::ordered_json::array();
  for (uint32_t i = 0; i < kMaxDraftTokens && stats.drafted_at[i] > 0; ++i) {
    by_position.push_back(Share(stats.accepted_at[i], stats.drafted_at[i]));
  }
  return {{"drafted", stats.drafted},
          {"accepted", stats.accepted},
          {"acceptance", stats.acceptance()},
          {"acceptance_by_position", by_position},
          {"tokens_per_step", stats.tokens_per_step()}};
}

std::string Summary(const DraftStats& stats) {
  return absl::StrFormat("%d drafted, %d accepted (%.0f %%), %.2f tokens per row and step",
                         stats.drafted, stats.accepted, 100 * stats.acceptance(),
                         stats.tokens_per_step());
}

}  // namespace eventide
