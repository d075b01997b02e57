// A progress line on stderr, where a person looks at a terminal; silent otherwise.
#pragma once

#include <chrono>
#include <string>

namespace eventide {

class Progress {
 public:
  // `enabled` false: silent (for --json, though stdout is never touched).
  explicit Progress(bool enabled = true);
  ~Progress() { Clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // "label [####....] 42 %  note", at most some ten times a second; the last one always.
  void Bar(const std::string& label, double done, double total, const std::string& note = "");
  // Removes the line.
  void Clear();

  bool enabled() const { return enabled_; }

 private:
  bool enabled_;
  bool shown_ = false;
  std::chrono::steady_clock::time_point last_;
};

}  // namespace eventide
