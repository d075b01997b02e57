// Where the time of a start goes: named phases of the thread that starts things. A phase inside
// another one takes its time out of the outer one, so that phases never overlap and their sum can
// be held against the wall clock. Work on other threads shows as the time this one waits for it.
//
//   PhaseSpan span(phases, "graph");   // until the end of the scope; `phases` may be null
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace eventide {

struct Phase {
  std::string name;
  double ms = 0;
};

// Used by one thread.
class PhaseLog {
 public:
  // Every Begin has its End, innermost first; PhaseSpan sees to that.
  void Begin(const std::string& name);
  void End();
  // Time that somebody else measured.
  void Add(const std::string& name, double ms);

  // In order of first appearance; a name that came back is one entry.
  const std::vector<Phase>& phases() const { return phases_; }
  double TotalMs() const;

 private:
  using Clock = std::chrono::steady_clock;
  // Gives the time since the last change to the innermost open phase.
  void Account();
  size_t Find(const std::string& name);

  std::vector<Phase> phases_;
  std::vector<size_t> open_;  // outermost first
  Clock::time_point changed_;
};

class PhaseSpan {
 public:
  PhaseSpan(PhaseLog* log, const char* name) : log_(log) {
    if (log_ != nullptr) log_->Begin(name);
  }
  PhaseSpan(const PhaseSpan&) = delete;
  ~PhaseSpan() {
    if (log_ != nullptr) log_->End();
  }

 private:
  PhaseLog* log_;
};

// What `work` returns, its time on `log`.
template <class Work>
auto InPhase(PhaseLog* log, const char* name, Work&& work) {
  const PhaseSpan span(log, name);
  return work();
}

}  // namespace eventide
