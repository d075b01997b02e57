// The ops of early exit on all host backends.
#include "tests/ops/exit_rows_case.h"
#include "tests/ops/exits_case.h"

namespace eventide {
namespace {

TEST_CASE("a token is decided by the cosine of its states, and keeps the state it had") {
  for (const OpBackend& backend : HostBackends()) {
    for (const int tokens : {0, 1, 2, 3, 9}) {
      for (const int hidden : {8, 33, 172}) CheckExitTest(backend, tokens, hidden);
    }
  }
}

TEST_CASE("rows leave when all their tokens have been decided, and tables follow") {
  for (const OpBackend& backend : HostBackends()) {
    for (const int rows : {0, 1, 2, 7, 63}) {
      for (uint64_t seed = 0; seed < 6; ++seed) CheckExitRows(backend, rows, seed);
    }
  }
  CheckExitRows(HostBackends()[0], 1024, 2);
}

TEST_CASE("states go where a point sends them, and come back behind other layers") {
  for (const OpBackend& backend : HostBackends()) {
    for (const int tokens : {0, 1, 7, 8, 9, 50}) {
      for (const bool point : {true, false}) {
        CheckExitSettle<BF16>(backend, tokens, 172, point);
        CheckExitSettle<F16>(backend, tokens, 33, point);
        CheckExitSettle<float>(backend, tokens, 64, point);
      }
    }
  }
}

TEST_CASE("those who left get keys and values from the states they left with") {
  for (const OpBackend& backend : HostBackends()) {
    for (const int left : {0, 1, 8, 9, 33}) {
      for (const bool qk_norm : {false, true}) {
        CheckExitKeysAndValues<float>(backend, left, qk_norm);
        CheckExitKeysAndValues<BF16>(backend, left, qk_norm);
        CheckExitKeysAndValues<F16>(backend, left, qk_norm);
      }
    }
  }
}

TEST_CASE("a step begins with everybody") {
  for (const OpBackend& backend : HostBackends()) {
    for (const int rows : {0, 1, 5, 40}) CheckExitBegin(backend, rows, 172);
  }
}

}  // namespace
}  // namespace eventide
