#include "tools/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace eventide {

Progress::Progress(bool enabled) : enabled_(enabled && isatty(STDERR_FILENO) != 0) {}

void Progress::Bar(const std::string& label, double done, double total, const std::string& note) {
  if (!enabled_) return;
  const auto now = std::chrono::steady_clock::now();
  if (shown_ && done < total && now - last_ < std::chrono::milliseconds(80)) return;
  last_ = now;
  shown_ = true;
  const double share = total > 0 ? std::clamp(done / total, 0.0, 1.0) : 1.0;
  constexpr int kWidth = 28;
  const int filled = static_cast<int>(share * kWidth);
  const std::string bar = std::string(filled, '#') + std::string(kWidth - filled, '.');
  std::fprintf(stderr, "\r\x1b[K%s [%s] %3.0f %%  %s", label.c_str(), bar.c_str(), share * 100,
               note.c_str());
  std::fflush(stderr);
}

void Progress::Clear() {
  if (!shown_) return;
  std::fprintf(stderr, "\r\x1b[K");
  std::fflush(stderr);
  shown_ = false;
}

}  // namespace eventide
