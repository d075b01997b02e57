// Finds stop strings in text that arrives in parts. Holds back only a tail that could still become
// a stop string, and lets nothing of a stop string through; where the text is cut makes no
// difference.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace eventide {

class StopMatcher {
 public:
  static constexpr size_t kMaxStops = 64;
  static constexpr size_t kMaxStopBytes = 4096;  // of each

  // Refuses an empty stop string, one that is not UTF-8, and more than the limits allow.
  static absl::StatusOr<StopMatcher> Create(const std::vector<std::string>& stops);

  StopMatcher() = default;  // no stop strings: text passes through

  struct Result {
    std::string text;  // safe to give out now
    int stop = -1;     // index of the stop string found; text before it is in `text`
  };
  // The stop string that is complete first wins; of several complete at the same byte, the longest.
  // After a stop was found further text is dropped.
  Result Push(absl::string_view text);

  // At the end without a stop: what was held back.
  std::string Finish();

  bool stopped() const { return stopped_; }

 private:
  // Aho-Corasick: a node is a prefix of a stop string.
  struct Node {
    std::map<unsigned char, uint32_t> children;
    uint32_t fallback = 0;  // the longest proper suffix that is a prefix of a stop string
    uint32_t depth = 0;     // its length, which is how much must be held back
    int stop = -1;          // the longest stop string that ends here
  };
  uint32_t Step(uint32_t node, unsigned char byte) const;

  std::vector<Node> nodes_ = {Node{}};
  std::vector<size_t> lengths_;  // of the stop strings
  uint32_t state_ = 0;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace eventide
