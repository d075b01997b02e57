#include "text/stop_matcher.h"

#include <deque>

#include "core/status.h"
#include "text/utf8.h"

namespace eventide {

uint32_t StopMatcher::Step(uint32_t node, unsigned char byte) const {
  while (true) {
    const auto child = nodes_[node].children.find(byte);
    if (child != nodes_[node].children.end()) return child->second;
    if (node == 0) return 0;
    node = nodes_[node].fallback;
  }
}

absl::StatusOr<StopMatcher> StopMatcher::Create(const std::vector<std::string>& stops) {
  if (stops.size() > kMaxStops) {
    return absl::InvalidArgumentError(
        absl::StrCat(stops.size(), " stop strings; at most ", kMaxStops, " are allowed"));
  }
  StopMatcher matcher;
  for (size_t i = 0; i < stops.size(); ++i) {
    const std::string& stop = stops[i];
    if (stop.empty() || stop.size() > kMaxStopBytes || !IsValidUtf8(stop)) {
      return absl::InvalidArgumentError(absl::StrCat("stop string ", i, " is empty, longer than ",
                                                     kMaxStopBytes, " bytes or not UTF-8"));
    }
    matcher.lengths_.push_back(stop.size());
    uint32_t node = 0;
    for (char c : stop) {
      const uint32_t fresh = static_cast<uint32_t>(matcher.nodes_.size());
      auto [child, is_new] =
          matcher.nodes_[node].children.try_emplace(static_cast<unsigned char>(c), fresh);
      const uint32_t depth = matcher.nodes_[node].depth + 1;
      node = child->second;
      if (!is_new) continue;
      matcher.nodes_.emplace_back();
      matcher.nodes_.back().depth = depth;
    }
    if (matcher.nodes_[node].stop < 0) matcher.nodes_[node].stop = static_cast<int>(i);
  }
  std::deque<uint32_t> queue = {0};  // breadth first: a fallback is shallower than its node
  while (!queue.empty()) {
    const uint32_t node = queue.front();
    queue.pop_front();
    for (const auto& [byte, child] : matcher.nodes_[node].children) {
      Node& next = matcher.nodes_[child];
      next.fallback = node == 0 ? 0 : matcher.Step(matcher.nodes_[node].fallback, byte);
      if (next.stop < 0) next.stop = matcher.nodes_[next.fallback].stop;
      queue.push_back(child);
    }
  }
  return matcher;
}

StopMatcher::Result StopMatcher::Push(absl::string_view text) {
  Result result;
  if (stopped_) return result;
  for (char c : text) {
    held_.push_back(c);
    state_ = Step(state_, static_cast<unsigned char>(c));
    const int stop = nodes_[state_].stop;
    if (stop < 0) continue;
    stopped_ = true;
    result.stop = stop;
    held_.resize(held_.size() - lengths_[static_cast<size_t>(stop)]);
    result.text.swap(held_);
    return result;
  }
  const size_t safe = held_.size() - nodes_[state_].depth;
  result.text = held_.substr(0, safe);
  held_.erase(0, safe);
  return result;
}

std::string StopMatcher::Finish() {
  std::string rest;
  rest.swap(held_);
  state_ = 0;
  return rest;
}

}  // namespace eventide
