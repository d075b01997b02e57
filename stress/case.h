// One case of a stress run: everything that decides what happens, as named whole numbers (or lists
// of them) that fit on one line and can be given back:
//
//   graph seed=17 a=3 b=0 workers=4 pages=6 policy=ticket schedule=99
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/status.h"

namespace eventide {

class StressCase {
 public:
  StressCase() = default;
  explicit StressCase(std::string kind) : kind_(std::move(kind)) {}

  const std::string& kind() const { return kind_; }
  bool Has(const std::string& name) const { return fields_.count(name) > 0; }
  // A field that is not there, or a list's element beyond its end, is `otherwise`.
  int64_t Get(const std::string& name, int64_t otherwise = 0) const {
    return At(name, 0, otherwise);
  }
  int64_t At(const std::string& name, size_t index, int64_t otherwise = 0) const;
  size_t Count(const std::string& name) const;
  void Set(const std::string& name, int64_t value) { fields_[name] = {value}; }
  void SetList(const std::string& name, std::vector<int64_t> values) {
    fields_[name] = std::move(values);
  }
  const std::map<std::string, std::vector<int64_t>>& fields() const { return fields_; }

  std::string ToText() const;
  // The error names the word that is wrong.
  static absl::StatusOr<StressCase> FromText(const std::string& text);

  bool operator==(const StressCase&) const = default;

 private:
  std::string kind_;
  std::map<std::string, std::vector<int64_t>> fields_;
};

// How a case ended.
struct StressOutcome {
  enum class Verdict {
    kPassed,
    kFailed,
    kInvalid,  // the case does not make sense: what `failure` says
  } verdict = Verdict::kPassed;
  std::string sort;     // of a failure, so that another one is not taken for it: "deadlock", ...
  std::string failure;  // what was seen, with what was expected
  uint64_t steps = 0;
  uint64_t shapes = 0;  // distinct ones within the case
  uint64_t compilations_after_ready = 0;

  static StressOutcome Invalid(std::string why) {
    StressOutcome outcome;
    outcome.verdict = Verdict::kInvalid;
    outcome.failure = std::move(why);
    return outcome;
  }
  void Fail(std::string what_sort, std::string what) {
    if (verdict == Verdict::kFailed) return;  // the first one tells most
    verdict = Verdict::kFailed;
    sort = std::move(what_sort);
    failure = std::move(what);
  }
};

// Numbers for cases; equal seeds give equal ones.
class StressRandom {
 public:
  explicit StressRandom(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15ull;  // splitmix64
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  int64_t Below(int64_t n) { return static_cast<int64_t>(Next() % static_cast<uint64_t>(n)); }
  int64_t Between(int64_t low, int64_t high) { return low + Below(high - low + 1); }
  bool Chance(int percent) { return Below(100) < percent; }
  int64_t OneOf(std::initializer_list<int64_t> values) {
    return values.begin()[Below(static_cast<int64_t>(values.size()))];
  }

 private:
  uint64_t state_;
};

}  // namespace eventide
