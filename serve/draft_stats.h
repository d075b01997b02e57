// What became of drafts.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "serve/step.h"

namespace eventide {

// Over all decode rows of retired steps, with drafts or without, whose sequence had not ended before.
struct DraftStats {
  uint64_t rows = 0;
  uint64_t tokens = 0;  // that they brought
  uint64_t drafted = 0, accepted = 0;
  // By a draft's place in its row, from 0. Accepted: it and all before it.
  std::array<uint64_t, kMaxDraftTokens> drafted_at = {}, accepted_at = {};

  void Add(const RowResult& row);
  double acceptance() const;       // of drafts; 0 without any
  double tokens_per_step() const;  // of a row; 0 without any
};

// {drafted, accepted, acceptance, acceptance_by_position, tokens_per_step}; positions up to the last that
// was ever drafted.
nlohmann::ordered_json ToJson(const DraftStats& stats);
// The same for people, one line.
std::string Summary(const DraftStats& stats);

}  // namespace eventide
