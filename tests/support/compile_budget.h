// Budgets of compile time that hold on slow machines, too. A budget is of CPU time on the machine of record; on
// one where a yardstick, a source that never changes, takes longer than there, it is longer by as much. It is
// never shorter. CPU time of one machine on two days has been seen to differ by half.
#pragma once

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "jit/nvrtc.h"

namespace eventide {

// A hundred loops with branches, loads and divisions: NVVM and the assembler share the time as they do for
// kernels of models.
inline std::string YardstickSource() {
  std::string source =
      "extern \"C\" __global__ void yardstick(float* x, const int* n) {\n"
      "  float a = x[threadIdx.x], b = a + 1.0f;\n";
  for (int i = 0; i < 100; ++i) {
    absl::StrAppend(&source, "  for (int i = 0; i < n[", i, "]; ++i) {\n    a = a * b + x[i + ", i,
                    "];\n    if (a > b) b = b / (a + ", i, ".0f);\n    if (i % ", i + 3, " == 1) x[i * ", i + 2,
                    "] = a;\n  }\n");
  }
  return absl::StrCat(source, "  x[threadIdx.x] = a + b;\n}\n");
}

// How much slower than the machine of record this one is now, by the least of some tries; 1 if it is not. Needs
// NVRTC.
inline double SlownessNow(int tries) {
  constexpr double kOfRecord = 440;  // ms, NVRTC 13.0
  double least = 1e9;
  for (int i = 0; i < tries; ++i) {
    const auto compiled = (*Nvrtc::Get())->Compile(YardstickSource(), {}, **ArchByName("sm_90a"), "yardstick");
    if (compiled.ok()) least = std::min(least, compiled->cpu_milliseconds);
  }
  return least < 1e9 ? std::max(1.0, least / kOfRecord) : 1.0;
}

inline double Slowness() {
  static const double slowness = SlownessNow(3);
  return slowness;
}

// What a compile that has just been would have taken on the machine of record: neighbours that share caches and cores
// make both slower, from one minute to the next.
inline double MillisecondsOfRecord(double milliseconds) { return milliseconds / SlownessNow(2); }

inline double CompileBudget(double milliseconds) { return milliseconds * Slowness(); }

}  // namespace eventide
