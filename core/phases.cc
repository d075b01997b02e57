#include "core/phases.h"

#include "core/status.h"

namespace eventide {

size_t PhaseLog::Find(const std::string& name) {
  for (size_t i = 0; i < phases_.size(); ++i) {
    if (phases_[i].name == name) return i;
  }
  phases_.push_back({name, 0});
  return phases_.size() - 1;
}

void PhaseLog::Account() {
  const Clock::time_point now = Clock::now();
  if (!open_.empty()) {
    phases_[open_.back()].ms += std::chrono::duration<double, std::milli>(now - changed_).count();
  }
  changed_ = now;
}

void PhaseLog::Begin(const std::string& name) {
  Account();
  open_.push_back(Find(name));
}

void PhaseLog::End() {
  EVT_CHECK(!open_.empty());
  Account();
  open_.pop_back();
}

void PhaseLog::Add(const std::string& name, double ms) {
  phases_[Find(name)].ms += ms;
}

double PhaseLog::TotalMs() const {
  double total = 0;
  for (const Phase& phase : phases_) total += phase.ms;
  return total;
}

}  // namespace eventide
