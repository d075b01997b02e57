// How far tokens went through the layers, with early exit.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace eventide {

struct ExitStats {
  uint64_t tokens = 0;         // query tokens of all steps: prefill, decode, drafts, recomputation
  std::vector<uint64_t> left;  // of these, by layer: left behind it. Empty: there is no early exit

  uint64_t left_early() const;
  double layers_per_token() const;  // that they passed; 0 without tokens
};

// {tokens, layers, layers_per_token, left_early, left_behind_layer: {"8": 120, ...}}: layers from 1 on, those that
// somebody left behind.
nlohmann::ordered_json ToJson(const ExitStats& stats);
// The same for people, one line.
std::string Summary(const ExitStats& stats);

}  // namespace eventide
