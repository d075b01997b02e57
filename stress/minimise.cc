#include "stress/minimise.h"

#include <algorithm>
#include <chrono>

namespace eventide {
namespace {

using Clock = std::chrono::steady_clock;

class Minimiser {
 public:
  Minimiser(const StressCase& start, const StressOutcome& failed,
            const std::function<StressOutcome(const StressCase&)>& run,
            const MinimiseOptions& options)
      : run_(run), options_(options), best_{start, failed, 0} {}

  Minimised Run() {
    bool better = true;
    while (better && !Spent()) {
      better = false;
      const auto fields = best_.smallest.fields();  // a copy: the best changes on the way
      for (const auto& [name, values] : fields) {
        if (Spent()) break;
        if (values.size() > 1 || IsRequestList(name)) {
          better |= ShrinkList(name);
        } else {
          better |= ShrinkValue(name, 0);
        }
      }
    }
    return std::move(best_);
  }

 private:
  // Lists with one element for each request: they lose them together.
  static bool IsRequestList(const std::string& name) {
    return name == "prompts" || name == "outs" || name == "cancels" || name == "arrivals";
  }
  bool Spent() const {
    return best_.runs >= options_.most_runs ||
           std::chrono::duration<double>(Clock::now() - start_).count() >= options_.most_seconds;
  }

  // Whether the candidate fails in the same way; then it is the best so far.
  bool Try(const StressCase& candidate) {
    if (Spent() || candidate == best_.smallest) return false;
    ++best_.runs;
    StressOutcome outcome = run_(candidate);
    if (outcome.verdict != StressOutcome::Verdict::kFailed || outcome.sort != best_.outcome.sort) {
      return false;
    }
    best_.smallest = candidate;
    best_.outcome = std::move(outcome);
    return true;
  }

  static StressCase With(const StressCase& from, const std::string& name, size_t index,
                         int64_t value) {
    std::vector<int64_t> values = from.fields().at(name);
    values[index] = value;
    StressCase result = from;
    result.SetList(name, std::move(values));
    return result;
  }

  bool ShrinkValue(const std::string& name, size_t index) {
    const int64_t simplest = SimplestValue(name);
    int64_t value = best_.smallest.At(name, index);
    if (value == simplest) return false;
    if (Try(With(best_.smallest, name, index, simplest))) return true;
    bool better = false;
    // Halfway, then single steps; each success starts anew from where it got.
    for (int64_t distance = (value - simplest) / 2; distance != 0; distance /= 2) {
      while (!Spent() && Try(With(best_.smallest, name, index, value - distance))) {
        value -= distance;
        better = true;
      }
    }
    return better;
  }

  bool ShrinkList(const std::string& name) {
    bool better = false;
    for (size_t i = best_.smallest.Count(name); i-- > 0 && !Spent();) {
      if (best_.smallest.Count(name) > 1) {
        StressCase fewer = best_.smallest;
        for (const auto& [other, values] : best_.smallest.fields()) {
          const bool together = other == name || (IsRequestList(name) && IsRequestList(other));
          if (!together || i >= values.size()) continue;
          std::vector<int64_t> left = values;
          left.erase(left.begin() + static_cast<long>(i));
          fewer.SetList(other, std::move(left));
        }
        if (Try(fewer)) {
          better = true;
          continue;
        }
      }
      better |= ShrinkValue(name, i);
    }
    return better;
  }

  const std::function<StressOutcome(const StressCase&)>& run_;
  const MinimiseOptions options_;
  const Clock::time_point start_ = Clock::now();
  Minimised best_;
};

}  // namespace

int64_t SimplestValue(const std::string& field) {
  struct Simplest {
    const char* field;
    int64_t value;
  };
  static constexpr Simplest kSimplest[] = {
      {"workers", 1}, {"layers", 1},  {"heads", 1},  {"kv_heads", 1}, {"head_dim", 8},
      {"hidden", 16}, {"inter", 16},  {"vocab", 16}, {"pages", 12},   {"tied", 1},
      {"block", 16},  {"prompts", 1}, {"outs", 1},   {"cancels", -1}, {"chunk", 64},
      {"flight", 1},  {"pool", 400},  {"tries", 1},  {"expert_inter", 16}};
  for (const Simplest& simplest : kSimplest) {
    if (field == simplest.field) return simplest.value;
  }
  return 0;
}

Minimised Minimise(const StressCase& start, const StressOutcome& failed,
                   const std::function<StressOutcome(const StressCase&)>& run,
                   const MinimiseOptions& options) {
  return Minimiser(start, failed, run, options).Run();
}

}  // namespace eventide
