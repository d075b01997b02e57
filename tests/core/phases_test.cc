#include "core/phases.h"

#include <thread>

#include "tests/support/test.h"

namespace eventide {
namespace {

void Sleep(int ms) {
  std::this_thread::sleep_for(std::chrono::milliseconds(ms));
}

double Ms(const PhaseLog& log, const std::string& name) {
  for (const Phase& phase : log.phases()) {
    if (phase.name == name) return phase.ms;
  }
  return -1;
}

TEST_CASE("a phase inside another takes its time out of it, so that the sum is the wall clock") {
  PhaseLog log;
  const auto start = std::chrono::steady_clock::now();
  {
    const PhaseSpan outer(&log, "outer");
    Sleep(4);
    {
      const PhaseSpan inner(&log, "inner");
      Sleep(20);
    }
    CHECK(InPhase(&log, "inner", [] {
            Sleep(20);
            return 7;
          }) == 7);
    Sleep(4);
  }
  const double wall =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  CHECK(Ms(log, "outer") >= 8);
  CHECK(Ms(log, "inner") >= 40);
  CHECK(log.TotalMs() <= wall);
  // What lies between the two readings of the clock is nanoseconds; a busy machine may add to it.
  CHECK(log.TotalMs() > wall - 8);
  REQUIRE(log.phases().size() == 2);
  CHECK(log.phases()[0].name == "outer");
}

TEST_CASE("time outside of every phase belongs to none, and measured time can be added") {
  PhaseLog log;
  { const PhaseSpan span(&log, "a"); }
  Sleep(30);
  { const PhaseSpan span(&log, "a"); }
  CHECK(Ms(log, "a") < 30);
  log.Add("b", 12.5);
  log.Add("b", 1);
  CHECK(Ms(log, "b") == 13.5);
  CHECK(InPhase(nullptr, "nobody", [] { return 3; }) == 3);
}

}  // namespace
}  // namespace eventide
